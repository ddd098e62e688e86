"""Which number format each part of a network is stored and multiplied in, on a device: bytes and peak FLOP/s by role.

A role is a group of weights that quantisations treat alike. What a device cannot multiply natively it dequantises to
the model's dtype (that is what W4A16 kernels do), and then the input stays in that dtype too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadValue
from ..base.symbols import Value
from ..network.graph import Model
from ..specs.catalog import plain_dtype, precision
from ..specs.engine_rules import version_number
from ..specs.structs import Engine, Hardware, Precision

QUANTISED = ("attn", "mlp", "experts", "shared")  # roles that a quantisation applies to
PLAIN = ("head", "embed", "router", "vision")  # roles that stay in the model's dtype
ROLES = QUANTISED + PLAIN


def precision_by_role(model: Model, dtype: str, quantization: str | None) -> dict[str, str]:
    """The precision's name of every role: what the config declares, or ``quantization``."""
    chosen = dict.fromkeys(ROLES, dtype)
    if quantization is None or quantization in model.quantization.values():
        return chosen | {r: p for r, p in model.quantization.items() if r in QUANTISED}
    if quantization in ("bf16", "fp16", "fp32"):
        return dict.fromkeys(ROLES, quantization)
    return chosen | dict.fromkeys(QUANTISED, quantization)


def with_states(model: Model, dtype: object) -> Model:
    """The model with its recurrent states, if any, in a format that was chosen: ``with_states(model, "bf16")``"""
    if dtype in (None, "auto"):
        return model
    return _with_state_bits(model, 8 * precision(plain_dtype(str(dtype), "mamba_ssm_cache_dtype")).bytes)


@cache_by_identity(64)
def _with_state_bits(model: Model, bits: float) -> Model:
    return msgspec.structs.replace(model, state_bits=bits)


def summary(roles: dict[str, str], dtype: str) -> str:
    """One name for a mix of precisions: the experts' or the MLP's, which hold the most weights."""
    return roles["experts"] if roles["experts"] != dtype else roles["mlp"]


def computed_as(engine: Engine, model: Model, device: Hardware, roles: Mapping[str, str]) -> dict[str, str]:
    """The precision whose kernels multiply each role's weights: vLLM computes gpt-oss in 16 bits on every device."""
    return {role: _computed_as(engine, model, device, role, name) for role, name in roles.items()}


def _computed_as(engine: Engine, model: Model, device: Hardware, role: str, name: str) -> str:
    for rule in engine.compute:
        if (
            rule.precision == name
            and (not rule.model_types or model.family in rule.model_types)
            and (not rule.vendors or device.vendor in rule.vendors)
            and (not rule.architectures or device.architecture in rule.architectures)
            and (not rule.roles or role in rule.roles)
            and rule.moe_backend in ("", engine.moe_backend)
            and (not rule.version_below or version_number(engine.version) < version_number(rule.version_below))
        ):
            return rule.runs_as
    return name


def peak_format(device: Hardware, wanted: Precision, dtype: str) -> str:
    """The format a product runs in: the precision's own if the device has it, else the model's dtype or the nearest."""
    native = wanted.compute if not wanted.units or wanted.units in device.flops else ()
    for number_format in (*native, *precision(dtype).compute, "fp16", "bf16", "tf32", "fp32"):
        if number_format in device.flops:
            return number_format
    raise BadValue(f"{device.name} has no FLOP/s in any of fp16, bf16, fp32: give it one as {device.name}:flops.bf16=…")


def formats(device: Hardware, roles: dict[str, str], dtype: str) -> dict[str, str]:
    """What each role's products run as: ``{"mlp": "fp8"}``, or ``w8a16`` on a device that cannot multiply in fp8."""
    by_role = {}
    for role, name in roles.items():
        wanted = precision(name)
        native = not wanted.compute or peak_format(device, wanted, dtype) in wanted.compute
        by_role[role] = name if native else wanted.without_units or name
    return by_role


def bind(
    model: Model, device: Hardware, *, dtype: str, roles: dict[str, str], kv_cache_dtype: str, norm_dtype: str = ""
) -> tuple[dict[str, Value], list[str]]:
    """The names that formulas use for bytes and peaks, and notes about what the device lacks."""
    act = precision(dtype).bits / 8
    env: dict[str, Value] = {"act_bytes": act, "norm_bytes": precision(norm_dtype or dtype).bits / 8}
    env["kv_bytes"] = precision(kv_cache_dtype, "KV cache dtype").bits / 8
    env["state_bytes"] = model.state_bits / 8
    used = {op.role for block in model.blocks for op in block.ops}
    notes: list[str] = []
    for role in ROLES:
        wanted = precision(roles[role])
        runs = peak_format(device, wanted, dtype)
        native = bool(wanted.compute) and runs == wanted.compute[0]
        env[f"{role}_weight_bytes"] = wanted.bytes
        env[f"{role}_input_bytes"] = min(act, wanted.activation_bits / 8) if native else act
        env[f"{role}_peak_flops"] = device.flops[runs]
        if role in used and wanted.compute and not wanted.units and runs not in wanted.compute:
            notes.append(
                f"{device.name} has no {wanted.compute[0]} units: {wanted.name} weights are computed in {runs}"
            )
    env["attention_peak_flops"] = device.flops[peak_format(device, precision(dtype), dtype)]
    env["index_peak_flops"] = device.flops.get("fp8") or env["attention_peak_flops"]  # sparse attention chooses in fp8
    env["vector_peak_flops"] = device.flops.get("fp32") or max(device.flops.values())
    return env, list(dict.fromkeys(notes))
