"""Which models and which GPUs the kernels are for."""

from __future__ import annotations

from engine.backends.base import require_features
from engine.backends.cuda.driver import Device
from engine.errors import BackendUnavailable
from engine.models.config import Feature, ModelConfig

NAME = "cuda"
_FEATURES = frozenset((Feature.QKV_BIAS, Feature.QK_NORM, Feature.LAYER_ROTATION, Feature.ROTATION_AMPLITUDE))
"""What the kernel computes beyond a plain Llama's arithmetic, in decode and in prefill."""
_EXPERT_FEATURES = _FEATURES | {Feature.EXPERTS, Feature.OUT_BIAS, Feature.SINKS, Feature.CLAMPED_SWIGLU}
"""What it computes for models with experts."""
_POST_NORM_FEATURES = _FEATURES | {
    Feature.POST_NORMS,
    Feature.GELU,
    Feature.EMBEDDING_SCALE,
    Feature.ATTENTION_SCALE,
    Feature.ATTENTION_CAP,
    Feature.LOGIT_CAP,
}
"""What it computes for models with norms after modules."""


def require_support(config: ModelConfig) -> None:
    """Raises BackendUnavailable if the model needs arithmetic that the kernels have not."""
    found = _EXPERT_FEATURES if config.experts else _POST_NORM_FEATURES if config.post_norms else _FEATURES
    require_features(config, found, NAME)


def require_hopper(device: Device) -> None:
    """Raises BackendUnavailable for a GPU of another generation."""
    major, minor = device.compute_capability
    if major != 9:
        raise BackendUnavailable(
            f"GPU {device.ordinal} is a {device.name} (compute capability {major}.{minor});"
            " the kernels need 9.0: H100, H200"
        )
