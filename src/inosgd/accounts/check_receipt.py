"""Check the receipt of an account book against its published head: python check_receipt.py RECEIPT.json NUMBER:HASH."""

import json
import math
import struct
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

ORDERS = [*range(2, 64), *(round(64 * 2 ** (quarter / 4)) for quarter in range(29))]


def _need(holds: object, why: str) -> None:
    return None if holds else sys.exit(f"NOT VALID: {why}")


def row_of(proof: Any, named: Any, row: int) -> Any:
    """The row of an array, from a piece that is in the array's tree at its place."""
    values, kind = math.prod(named["shape"][1:]), named["type"][1:]
    per = max(1, 4096 // (values * int(kind[1:])))
    place, count, content = row // per, -(-named["shape"][0] // per), b64decode(proof["content"])
    digest, path = sha256(b"\0" + content).digest(), [bytes.fromhex(each) for each in proof["path"]]
    while count > 1:
        if place % 2 or place + 1 < count:
            digest = sha256(b"\1" + (path.pop(0) + digest if place % 2 else digest + path.pop(0))).digest()
        place, count = place // 2, (count + 1) // 2
    _need(digest.hex() == named["root"] and 0 <= row < named["shape"][0], "a piece is not in its array")
    form = f"<{values}" + {"f8": "d", "i8": "q", "i4": "i", "u1": "B"}[kind]
    return struct.unpack_from(form, content, row % per * struct.calcsize(form))


def divergence(q: float, z: float, order: int) -> float:
    """Of the sampled Gaussian mechanism at a whole order: log(1 + sum over k of positive terms) / (order - 1)."""
    if q in (0, 1):
        return q * order / (2 * z * z)
    logs, log = [], math.lgamma
    for k in range(2, order + 1):
        x, choose = k * (k - 1) / (2 * z * z), log(order + 1) - log(k + 1) - log(order - k + 1)
        logs.append(choose + k * math.log(q) + (order - k) * math.log1p(-q) + x + math.log(-math.expm1(-x)))
    total = (top := max(logs)) + math.log(math.fsum(math.exp(each - top) for each in logs))
    return (total if total > 50 else math.log1p(math.exp(total))) / (order - 1)


def prices(body: Any, row: Any, order: int) -> list[float]:
    """What one release costs in each phase of a training, or what showing the best of several trials costs."""
    values, trials = iter(row), body["trials"]
    runs = [[(next(values), next(values), n) for n in steps] for steps in body["steps"]]
    if trials is None or not any(row[::2]):
        return [divergence(q, z, order) for q, z, _ in runs[0]][: len(body["releases"])]
    base = {a: max(sum(n * divergence(q, z, a) for q, z, n in run) for run in runs) for a in ORDERS}
    if trials["family"] == "poisson":
        logs = [(a - 1) * (d + math.log1p(-1 / order) + math.log1p(-1 / a)) - math.log(a) for a, d in base.items()]
        return [base[order] + trials["mean"] * math.exp(min(*logs, 0.0)) + math.log(trials["mean"]) / (order - 1)]
    other = min((1 - 1 / a) * d - math.log(trials["gamma"]) / a for a, d in {**base, 1: 0.0}.items())
    return [base[order] + (1 + trials["eta"]) * other + math.log(max(trials["mean"], 1)) / (order - 1)]


def _main(receipt: Any, head: str) -> None:
    previous, spent, own, reserved, but, owner = "0" * 64, 0, dict[str, Any](), dict[str, Any](), "", receipt["owner"]
    for number, entry in enumerate(receipt["entries"], 1):
        text, what, kind = entry.pop("text"), f"entry {number}", entry["kind"]
        _need(entry["number"] == number and entry["previous"] == previous, f"{what} does not follow")
        previous = sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        if entry["collection"] != receipt["collection"]:
            continue
        _need(text and sha256(text.encode()).hexdigest() == entry["body"], f"{what} was edited")
        body = json.loads(text)
        for name in sorted(body["arrays"], key="members".__ne__):
            if name.split()[0] in ("members", "names", "orders", "budgets", "mechanisms", "prices"):
                row = receipt["place"] if name in ("members", "names") else own["members"][0]
                own[name] = row_of(receipt["proofs"][str(number)][name], body["arrays"][name], row)
        name = sha256(bytes.fromhex(receipt["salt"]) + owner.encode()).digest()
        _need(bytes(own["names"]) == name, "the owner is another one")
        (epsilon, delta), (order,) = own["budgets"], own["orders"]
        room = epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
        if kind in ("opened", "declared"):
            own["declared"] = [] if reserved else body.get("trainings")
            but += f" in {body['name']!r}" if kind == "opened" else "; by PLD, which `inosgd account verify` checks"
        elif kind == "reserved":
            if part := body.get("programme"):
                declared = own["declared"][part[1]]["steps"], own.pop(f"mechanisms {part[1]}", 0)
                _need(declared == (body["steps"], own["mechanisms"]), f"{what} is not what was declared")
            exact = [0.0] * len(own["prices"]) if part else prices(body, own["mechanisms"], order)
            for said, price in zip(own["prices"], exact, strict=True):
                _need(said * 1e-12 >= max(price * (1 - 1e-6) - 1e-11, 0), f"{what}: a price is too low")
            pairs = zip(own["prices"], body["releases"], strict=True)
            reserved[body["reservation"]] = [price for price, count in pairs for _ in range(count)], 0
        elif kind in ("committed", "settled"):
            (each, before), taken = reserved[body["reservation"]], body["releases"]
            spent, reserved[body["reservation"]] = spent + sum(each[:taken]) - sum(each[:before]), (each, taken)
            fits = before < taken <= len(each) and (spent * 1e-12 <= room or not any(each))
            _need(0 <= taken <= before if kind == "settled" else fits, f"{what}: more is charged than is allowed")
    _need(f"{number}:{previous}" == head, "it does not end at the published head: forged, or an old one")
    print(f"valid: {owner} was charged {spent * 1e-12:.6g} of {max(room, 0):.6g} (epsilon {epsilon:g}){but}")


if __name__ == "__main__":
    sys.exit(__doc__) if len(sys.argv) != 3 else _main(json.loads(Path(sys.argv[1]).read_bytes()), sys.argv[2])
