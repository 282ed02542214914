"""What is found of a model is used for others of its kind, and of no other kind."""

from __future__ import annotations

import functools
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from inosgd.errors import InvalidArgumentError
from inosgd.gradients import BookkeepingEngine, ReferenceEngine, checks, invariance, supervised
from inosgd.gradients.engine import Supervised
from inosgd.gradients.kinds import kind_of
from inosgd.gradients.recording import record_pass
from inosgd.gradients.task import Task
from inosgd.models import character_lstm, mnist_cnn, small_transformer

LOSSES = supervised(functional.cross_entropy)


def made(seed: int = 0, **changes) -> nn.Sequential:
    torch.manual_seed(seed)
    convolution = nn.Conv2d(1, 4, **{"kernel_size": 3, "padding": 1, **changes})
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3))


def kind(model: nn.Module, losses=LOSSES, examples=None):
    return kind_of(Task.of(model, losses), batch(4) if examples is None else examples)


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(count)
    return torch.randn(count, 1, 6, 6, generator=source), torch.arange(count) % 3


def test_numbers_make_no_difference():
    assert kind(made(0)) == kind(made(1)) is not None
    with_offsets = [LOSSES.with_offsets(torch.full((3,), value).numpy()) for value in (0.5, 1.0)]
    assert kind(made(), with_offsets[0]) == kind(made(), with_offsets[1]) != kind(made())


def evaluated(model: nn.Sequential) -> None:
    model[1].eval()


def frozen(model: nn.Sequential) -> None:
    model[0].bias.requires_grad_(False)


def tied(model: nn.Sequential) -> None:
    model.append(nn.Linear(3, 3))
    model.append(model[-1])


def untied(model: nn.Sequential) -> None:
    model.extend([nn.Linear(3, 3), nn.Linear(3, 3)])


def circular(model: nn.Sequential) -> None:
    model[0].padding_mode = "circular"


def rewritten(model: nn.Sequential) -> None:
    model[1].forward = functional.relu


def in_channels_last(model: nn.Sequential) -> None:
    model.to(memory_format=torch.channels_last)


def at_another_address(model: nn.Sequential) -> None:
    model[0].weight.data = torch.zeros(40)[1:37].view(4, 1, 3, 3)


def other_activation(model: nn.Sequential) -> None:
    model[1] = nn.Sigmoid()


def doubled(model: nn.Sequential) -> None:
    model.double()


@pytest.mark.parametrize(
    "change",
    [
        evaluated,
        frozen,
        tied,
        untied,
        circular,
        rewritten,
        in_channels_last,
        at_another_address,
        other_activation,
        doubled,
    ],
)
def test_everything_else_does(change):
    model = made()
    change(model)
    changed = kind(model)
    assert changed is not None
    assert changed != kind(made())


@pytest.mark.parametrize("make", [character_lstm, mnist_cnn, small_transformer])
def test_networks_of_this_library_have_kinds(make):
    assert kind(make(seed=0)) == kind(make(seed=1)) is not None
    assert kind(make(seed=0)) != kind(make(seed=0).eval())


def test_a_class_under_the_name_of_another_is_of_no_kind(monkeypatch):
    model = made()
    model[1] = type("Tanh", (nn.Tanh,), {"__module__": nn.Tanh.__module__})()
    assert kind(model) is None


@pytest.mark.parametrize(
    "examples",
    [
        {"inputs": batch(4)[0], "labels": batch(4)[1]},
        {"other": batch(4)[0], "labels": batch(4)[1]},
        (batch(4)[0].double(), batch(4)[1]),
        (batch(4)[0][..., :5], batch(4)[1]),
        (batch(4)[0], batch(4)[1], True),
        (batch(4)[0], batch(4)[1], False),
    ],
)
def test_other_examples_make_another_kind(examples):
    assert kind(made(), examples=batch(9)) == kind(made())
    found = kind(made(), examples=examples)
    assert found is not None
    assert found != kind(made())
    assert kind(made(), examples=[*examples, object()]) is None


def test_flags_among_examples_make_another_kind():
    flagged = [(*batch(4), flag) for flag in (True, False)]
    assert kind(made(), examples=flagged[0]) != kind(made(), examples=flagged[1])


def test_what_replaces_the_code_of_a_class_makes_another_kind(monkeypatch):
    before = kind(made())
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda self, inputs, weight, bias: inputs)
    assert kind(made()) != before


class Number(float):
    """A number that can be called."""

    def __call__(self, inputs):
        return inputs - inputs.mean(0)


def with_class(model: nn.Sequential) -> None:
    model[1].activation = Own


def with_callable_number(model: nn.Sequential) -> None:
    model[1].activation = Number(1.0)


def with_bound_builtin(model: nn.Sequential) -> None:
    model[1].activation = torch.ones(3).mul


def without_a_name(model: nn.Sequential) -> None:
    made_up: dict = {}
    exec("def function(inputs): return inputs", {"__builtins__": {}}, made_up)
    model[1].activation = made_up["function"]


def test_one_layer_twice_is_another_kind_than_two():
    models = [made(), made()]
    tied(models[0])
    untied(models[1])
    assert kind(models[0]) != kind(models[1])


def test_a_patched_class_is_another_kind(monkeypatch):
    before = kind(made())
    monkeypatch.setattr(nn.Tanh, "forward", nn.Sigmoid.forward)
    assert kind(made()) != before


class Own(nn.Tanh):
    """What a subclass does is its own affair."""


def with_hook(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda *_: None)


def with_subclass(model: nn.Sequential) -> None:
    model[1] = Own()


def with_object(model: nn.Sequential) -> None:
    model[1].scale = object()


def with_method(model: nn.Sequential) -> None:
    model[1].forward = Own().forward


def with_own_function(model: nn.Sequential) -> None:
    model[1].forward = lambda inputs: torch.tanh(inputs)


def with_hooked_parameter(model: nn.Sequential) -> None:
    model[0].weight.register_hook(lambda gradient: gradient)


@pytest.mark.parametrize(
    "change",
    [
        with_hook,
        with_subclass,
        with_object,
        with_method,
        with_own_function,
        with_hooked_parameter,
        with_class,
        with_callable_number,
        with_bound_builtin,
        without_a_name,
    ],
)
def test_what_may_do_anything_is_of_no_kind(change):
    model = made()
    change(model)
    assert kind(model) is None


def test_hooks_of_all_modules_may_do_anything():
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert kind(made()) is None
    finally:
        hook.remove()
    assert kind(made()) is not None


def test_modes_may_do_anything():
    with torch.overrides.BaseTorchFunctionMode():
        assert kind(made()) is None


class OwnLosses(Supervised):
    """Losses of a class of their own."""


def of_the_user(outputs, targets, reduction):
    """It may read global variables."""
    return functional.cross_entropy(outputs, targets, reduction=reduction)


def enclosing(large: torch.Tensor):
    return lambda outputs, targets, reduction: functional.cross_entropy(outputs, targets, large, reduction=reduction)


@pytest.mark.parametrize(
    "losses",
    [
        supervised(enclosing(torch.ones(3))),
        supervised(of_the_user),
        lambda model, examples: functional.cross_entropy(model(examples[0]), examples[1], reduction="none"),
        supervised(functools.partial(functional.cross_entropy, label_smoothing=0.1)),
        OwnLosses(functional.cross_entropy),
    ],
)
def test_losses_that_may_do_anything_are_of_no_kind(losses):
    assert kind(made(), losses) is None


@pytest.fixture
def tried(monkeypatch):
    """How many sizes were looked at, with nothing known from other tests."""
    count, looked = [0], invariance._agrees
    monkeypatch.setattr(invariance, "_found", {})

    def counted(*args):
        count[0] += 1
        return looked(*args)

    monkeypatch.setattr(invariance, "_agrees", counted)
    return count


def measured(model: nn.Module, count: int):
    with BookkeepingEngine().on(model, LOSSES, batch(count)) as gradients:
        return gradients.measure()


def test_a_second_model_of_a_kind_is_not_tried(tried):
    for count in (5, 40):
        measured(made(0), count)
    first = tried[0]
    assert first == 2
    for count in (5, 40):
        measured(made(1), count)
    assert tried[0] == first
    measured(made(1), 70)
    assert tried[0] > first, "another size"
    before = tried[0]
    measured(made(1, padding_mode="circular"), 5)
    assert tried[0] > before, "another kind"


def test_a_model_that_changes_its_ways_leaves_nothing_behind(tried):
    """It is known by then, and what is found of it afterwards is of its new kind."""
    model = made(0)
    measured(model, 5)
    circular(model)
    measured(model, 40)
    before = tried[0]
    measured(made(1), 40)
    assert tried[0] > before


def test_other_libraries_are_tried_anew(tried, monkeypatch):
    measured(made(0), 5)
    before = tried[0]
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    measured(made(1), 5)
    assert tried[0] > before


def test_another_rule_is_another_kind(monkeypatch):
    before = kind(made())
    monkeypatch.setattr("inosgd.gradients.kinds.rule_for", lambda _: None)
    assert kind(made()) != before


def test_few_findings_are_kept(tried, monkeypatch):
    monkeypatch.setattr(invariance, "_MOST_FOUND", 2)
    for count in (5, 40, 70, 100):
        measured(made(), count)
    assert len(invariance._found) == 2


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_draws_are_held_fixed_at_later_sizes_too(tried, share):
    """Without that, no bits would agree, and batches would pass in blocks."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(share), nn.Linear(8, 3))
    for count in (5, 40):
        _, rows = invariance.passing(Task.of(model, LOSSES), batch(count), record_pass)
    assert rows == 40


def two_numbers(weight: torch.Tensor) -> None:
    nn.init.eye_(weight)
    with torch.no_grad():
        weight += weight.roll(1, 1) / 3


@pytest.mark.parametrize("init", [nn.init.zeros_, nn.init.eye_, two_numbers])
class TestClosedWeights:
    """Sums of up to two products have the same bits in any batch: sizes are looked at with other weights."""

    def test_frozen_ones_are_of_a_kind_of_their_own(self, tried, init):
        models = [nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 3)) for _ in range(2)]
        init(models[0][1].weight)
        for model in models:
            model[1].requires_grad_(False)
            before = tried[0]
            measured(model, 5)
            assert tried[0] > before

    def test_an_example_has_the_same_bits_in_every_batch_after_the_first_step(self, init):
        torch.manual_seed(0)
        model, inputs = nn.Linear(13, 5), torch.randn(40, 13)
        weight = model.weight.detach().clone()
        init(model.weight)
        engine, examples = BookkeepingEngine(), (inputs, torch.arange(40) % 5)
        with engine.on(model, LOSSES, examples) as gradients:
            gradients.measure()
        with torch.no_grad():
            model.weight.copy_(weight)
        with engine.on(model, LOSSES, examples) as gradients:
            whole = gradients.measure()
        for count in (1, 5, 8, 17, 31):
            with engine.on(model, LOSSES, tuple(each[-count:] for each in examples)) as gradients:
                part = gradients.measure()
            assert part.losses.tolist() == whole.losses[-count:].tolist()
            assert part.grad_norms.tolist() == whole.grad_norms[-count:].tolist()


class TestValues:
    """Another model of a kind is checked like the same one after some steps."""

    @pytest.fixture
    def checked(self, monkeypatch):
        """How many rows every batch had whose values were checked."""
        rows, check = [], checks.check_values

        def counted(task, examples, **options):
            rows.append(len(examples[1]))
            return check(task, examples, **options)

        monkeypatch.setattr(checks, "check_values", counted)
        return rows

    def test_batches_are_counted_on(self, checked):
        for _ in range(5):
            measured(made(0), 16)
        assert len(checked) == 3, "batches 1, 2 and 4"
        measured(made(1), 17)
        assert len(checked) == 3
        measured(made(1), 40)
        assert checked == [16, 16, 16, 40], "a larger one"
        measured(made(1), 16)
        assert len(checked) == 5, "batch 8"

    @pytest.mark.parametrize(
        "other",
        [
            lambda: (made(padding_mode="circular"), LOSSES),
            lambda: (made().append(Own()), LOSSES),
            lambda: (made(), supervised(of_the_user)),
        ],
    )
    def test_another_kind_is_checked_anew(self, checked, other):
        measured(made(), 16)
        model, losses = other()
        with BookkeepingEngine().on(model, losses, batch(16)):
            assert len(checked) == 2

    def test_other_examples_are_checked_anew(self, checked):
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for width in (5, 6):
            images = torch.randn(8, 1, width, width), torch.arange(8) % 3
            with BookkeepingEngine().on(deepcopy(model), LOSSES, images):
                pass
        assert len(checked) == 2

    def test_what_one_engine_found_says_nothing_about_another(self, checked):
        for engine in (BookkeepingEngine(), ReferenceEngine()):
            with engine.on(made(), LOSSES, batch(8)):
                pass
        assert len(checked) == 2

    def test_what_was_refused_is_refused_again(self, checked):
        for rows in (16, 12, 16):
            model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Softmax(0))
            assert kind(model) is not None
            with pytest.raises(InvalidArgumentError, match="another loss"):
                measured(model, rows)
        assert len(checked) == 3

    def test_what_is_repaired_in_place_says_nothing_about_what_it_was(self, checked):
        """The state of a model does not show a dimension; its kind does."""
        models = [nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Softmax(0)) for _ in range(2)]
        with pytest.raises(InvalidArgumentError, match="another loss"):
            measured(models[0], 16)
        models[0][2].dim = 1
        measured(models[0], 16)
        with pytest.raises(InvalidArgumentError, match="another loss"):
            measured(models[1], 16)

    def test_a_batch_that_cannot_tell_leaves_it_to_the_next_model(self, checked):
        for factor in (torch.nan, 1.0):
            inputs, targets = batch(16)
            with BookkeepingEngine().on(made(), LOSSES, (inputs * factor, targets)):
                pass
        assert len(checked) == 2

    def test_models_share_no_state(self, checked):
        models = made(0), made(1)
        for model in models:
            measured(model, 16)
        first, second = (next(iter(checks._checks[model][LOSSES].values())) for model in models)
        assert first is not second
        assert first.seen.calls is not second.seen.calls

    def test_few_kinds_are_kept(self, monkeypatch):
        monkeypatch.setattr(checks, "_MOST_KINDS", 2)
        for kernel_size in (1, 3, 5):
            measured(made(kernel_size=kernel_size, padding=kernel_size // 2), 4)
        assert len(checks._of_kinds) == 2
