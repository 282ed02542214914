"""Networks of torchvision, timm and segmentation_models_pytorch, as narrow and shallow as they can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from inosgd.bench.packages import imported
from tests.architectures.configuration import CLASSES, Configuration, classes, distances, images, normal


def _torchvision(name: str, **options: Any) -> nn.Module:
    models = imported("torchvision.models")
    return models.get_model(name, weights=None, num_classes=CLASSES, **options)


def _class_of_torchvision(module: str, name: str, **options: Any) -> nn.Module:
    made: nn.Module = getattr(imported(f"torchvision.models.{module}"), name)(**options)
    return made


def _timm(name: str, **options: Any) -> nn.Module:
    return imported("timm").create_model(name, pretrained=False, num_classes=CLASSES, **options)


def _segmentation(name: str, encoder: str, **options: Any) -> nn.Module:
    build = getattr(imported("segmentation_models_pytorch"), name)
    return build(encoder_name=encoder, encoder_weights=None, classes=2, **options)


_TORCHVISION: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (32, {}),
    "resnet50": (32, {}),
    "resnext50_32x4d": (32, {}),
    "squeezenet1_1": (64, {}),
    "densenet121": (32, {}),
    "mobilenet_v2": (32, {}),
    "mobilenet_v3_small": (32, {}),
    "mobilenet_v3_large": (32, {}),
    "shufflenet_v2_x0_5": (32, {}),
    "mnasnet0_5": (32, {}),
    "googlenet": (64, {"init_weights": False}),
    "inception_v3": (96, {"init_weights": False, "aux_logits": False}),
    "efficientnet_b0": (32, {}),
    "regnet_y_400mf": (32, {}),
    "regnet_x_400mf": (32, {}),
}

_VIT = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
_SWIN = {
    "patch_size": [4, 4],
    "embed_dim": 8,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": [4, 4],
    "stochastic_depth_prob": 0.2,
    "num_classes": CLASSES,
}
_CLIP = {"spatial_size": (16, 16), "temporal_size": 4, "num_classes": CLASSES}

_CUSTOM: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "VisionTransformer": (
        partial(_class_of_torchvision, "vision_transformer", "VisionTransformer", num_classes=CLASSES, **_VIT),
        images(16),
    ),
    "VisionTransformer with dropout": (
        partial(
            _class_of_torchvision,
            "vision_transformer",
            "VisionTransformer",
            num_classes=CLASSES,
            dropout=0.1,
            attention_dropout=0.1,
            **_VIT,
        ),
        images(16),
    ),
    "SwinTransformer": (partial(_class_of_torchvision, "swin_transformer", "SwinTransformer", **_SWIN), images(32)),
    "SwinTransformer, version 2": (lambda: _swin_v2(), images(32)),
    "MaxVit": (
        partial(
            _class_of_torchvision,
            "maxvit",
            "MaxVit",
            input_size=(32, 32),
            stem_channels=8,
            partition_size=2,
            block_channels=[8, 16],
            block_layers=[1, 1],
            head_dim=4,
            stochastic_depth_prob=0.1,
            num_classes=CLASSES,
        ),
        images(32),
    ),
    "MViT": (lambda: _mvit(), normal(3, 4, 16, 16)),
    "segmentation fcn_resnet50": (partial(_torchvision, "fcn_resnet50", weights_backbone=None), images(32)),
    "segmentation lraspp_mobilenet_v3_large": (
        partial(_torchvision, "lraspp_mobilenet_v3_large", weights_backbone=None),
        images(32),
    ),
    "segmentation deeplabv3_mobilenet_v3_large": (
        partial(_torchvision, "deeplabv3_mobilenet_v3_large", weights_backbone=None),
        images(32),
    ),
}


def _swin_v2() -> nn.Module:
    swin = imported("torchvision.models.swin_transformer")
    made: nn.Module = swin.SwinTransformer(
        **_SWIN, block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2
    )
    return made


def _mvit() -> nn.Module:
    module = imported("torchvision.models.video.mvit")
    blocks = [
        module.MSBlockConfig(1, 8, 8, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        module.MSBlockConfig(2, 8, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    made: nn.Module = module.MViT(
        **_CLIP,
        block_setting=blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        patch_embed_kernel=(3, 3, 3),
        patch_embed_stride=(2, 2, 2),
        patch_embed_padding=(1, 1, 1),
    )
    return made


_TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet10t": (32, {}),
    "resnetv2_18": (32, {}),
    "seresnet18": (32, {}),
    "skresnet18": (32, {}),
    "ecaresnet26t": (32, {}),
    "resnest14d": (32, {}),
    "dla46_c": (32, {}),
    "ese_vovnet19b_slim_dw": (32, {}),
    "regnety_002": (32, {}),
    "repvgg_a0": (32, {}),
    "mobileone_s0": (32, {}),
    "ghostnet_050": (32, {}),
    "lcnet_035": (32, {}),
    "tinynet_e": (32, {}),
    "mnasnet_small": (32, {}),
    "mobilenetv2_035": (32, {}),
    "mobilenetv3_small_050": (32, {}),
    "mobilenetv4_conv_small_035": (32, {}),
    "efficientnet_lite0": (32, {}),
    "efficientnet_b0_gn": (32, {}),
    "efficientnet_cc_b0_4e": (32, {}),
    "tf_efficientnet_b0": (32, {"drop_path_rate": 0.2}),
    "mixnet_s": (32, {}),
    "test_byobnet": (32, {}),
    "test_nfnet": (32, {}),
    "convnext_atto": (32, {"drop_path_rate": 0.1}),
    "convnext_atto_rms": (32, {}),
    "convnextv2_atto": (32, {}),
    "inception_next_atto": (32, {}),
    "mambaout_femto": (32, {}),
    "fasternet_t0": (32, {}),
    "starnet_s050": (32, {}),
    "edgenext_xx_small": (32, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "fastvit_t8": (64, {}),
    "repvit_m0_9": (32, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "efficientvit_b0": (32, {}),
    "levit_128s": (224, {}),
    "pvt_v2_b0": (32, {}),
    "twins_svt_small": (
        32,
        {"img_size": 32, "embed_dims": (8, 16, 16, 32), "num_heads": (1, 2, 2, 4), "depths": (1, 1, 1, 1)},
    ),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "vit_tiny_patch16_224, tokens frozen": (32, {"img_size": 32, "depth": 2}),
    "test_vit": (32, {"img_size": 32, "drop_path_rate": 0.1, "proj_drop_rate": 0.1}),
    "test_vit3": (32, {"img_size": 32}),
    "vit_relpos_small_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "vit_small_patch14_reg4_dinov2": (28, {"img_size": 28, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "deit_tiny_distilled_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "deit3_small_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "beit_base_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "cait_xxs24_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}),
    "convit_tiny": (32, {"img_size": 32, "depth": 2}),
    "crossvit_tiny_240": (240, {}),
    "swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2)},
    ),
    "swinv2_tiny_window8_256": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2)},
    ),
    "test_coatnet": (64, {"img_size": 64}),
    "test_maxvit": (64, {"img_size": 64}),
    "hiera_tiny_224": (64, {"img_size": 64, "embed_dim": 16, "stages": (1, 1, 1, 1)}),
    "davit_tiny": (32, {"depths": (1, 1), "embed_dims": (8, 16), "num_heads": (2, 2)}),
    "focalnet_tiny_srf": (32, {}),
    "gcvit_xxtiny": (64, {"img_size": 64}),
    "tnt_s_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "tiny_vit_5m_224": (64, {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32), "num_heads": (1, 2, 2, 4)}),
    "gmlp_ti16_224": (32, {"img_size": 32}),
    "sequencer2d_s": (
        32,
        {"img_size": 32, "layers": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8), "hidden_sizes": (4, 4, 4, 4)},
    ),
    "lambda_resnet26t": (64, {}),
}

_SEGMENTATION = {
    "Unet": "resnet18",
    "UnetPlusPlus": "resnet18",
    "MAnet": "resnet18",
    "Linknet": "resnet18",
    "FPN": "mobilenet_v2",
    "PSPNet": "resnet18",
    "PAN": "resnet18",
    "DeepLabV3Plus": "resnet18",
    "UPerNet": "resnet18",
    "Segformer": "mit_b0",
}


def _tokens_frozen(name: str, **options: Any) -> nn.Module:
    model = _timm(name, **options)
    model.cls_token.requires_grad_(False)
    model.pos_embed.requires_grad_(False)
    return model


def torchvision_configurations() -> dict[str, Configuration]:
    """By name."""
    found = {
        name: Configuration("torchvision", partial(_torchvision, name, **options), images(pixels), classes)
        for name, (pixels, options) in _TORCHVISION.items()
    }
    found |= {name: Configuration("torchvision", build, batch, distances) for name, (build, batch) in _CUSTOM.items()}
    return {f"torchvision: {name}": each for name, each in found.items()}


def timm_configurations() -> dict[str, Configuration]:
    """By name."""
    found = {}
    for name, (pixels, options) in _TIMM.items():
        real, _, change = name.partition(", ")
        build = partial(_tokens_frozen if change else _timm, real, **options)
        found[f"timm: {name}"] = Configuration("timm", build, images(pixels), classes)
    return found


def segmentation_configurations() -> dict[str, Configuration]:
    """By name."""
    return {
        f"segmentation_models_pytorch: {name} on {encoder}": Configuration(
            "segmentation_models_pytorch",
            partial(_segmentation, name, encoder),
            images(256 if name == "PAN" else 64),  # with fewer pixels it normalises a single number for each image
            distances,
        )
        for name, encoder in _SEGMENTATION.items()
    }
