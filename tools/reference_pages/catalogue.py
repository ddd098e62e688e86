"""Pages of what the catalogue holds: devices and their sources, models, number formats, hosts, use cases."""

from __future__ import annotations

from inferometer.base.units import count
from inferometer.inference.weights import active_parameters, parameters
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.hosts import host
from inferometer.specs.structs import Hardware

from .markdown import anchor, code, table
from .struct_fields import fields, kind_name

DEVICES = """# Devices

`--gpu` takes any of these names, an alias, or a [file of your own](../hardware.md#a-device-of-your-own). FLOP/s are
dense, without sparsity; a link's bandwidth is that of one
device in one direction. Names lead to the [source of each figure](device-sources.md). `inferometer show hardware
NAME` prints them all.

"""
SOURCES = """# Sources of the devices' figures

Every figure of [a device](devices.md) has a source. "Assumed" says that none was found.

"""
MODELS = """# Models

`MODEL` may be one of these names, a Hugging Face id, a `config.json` or a [network of your own](../models.md). Names
that end in a precision (`-FP8`, `-AWQ`) mean the
same entry in that precision. Parameters are counted from the config; "active" are those that one token is multiplied
by. `inferometer show models NAME` prints the source and the config.

"""
FORMATS = """# Number formats, hosts and use cases

## Number formats

`-q` and `--kv-cache-dtype` take these names. Bytes include the scales of groups.

"""


def devices() -> str:
    """docs/reference/devices.md: a table of all devices, the vendors apart."""
    parts = [DEVICES]
    every = [catalog.hardware(name) for name in catalog.names("hardware")]
    for vendor in sorted({device.vendor or "Others" for device in every}, key=lambda name: (name != "NVIDIA", name)):
        rows = [_device_row(device) for device in every if (device.vendor or "Others") == vendor]
        head = ["name", "memory GB", "TB/s", "16-bit TFLOP/s", "fp8 TFLOP/s", "link", "GB/s", "W", "$/h", "device"]
        parts.append(f"## {vendor}\n\n{table(head, rows, numbers=(*head[1:5], *head[6:9]))}\n")
    return "".join(parts).rstrip() + "\n"


def _device_row(device: Hardware) -> list[str]:
    half = device.flops.get("bf16") or device.flops.get("fp16") or device.flops.get("fp32", 0.0)
    link = device.links.get(device.interconnect)
    figures = (device.memory / 1e9, device.memory_bandwidth / 1e12, half / 1e12, device.flops.get("fp8", 0.0) / 1e12)
    return [
        f"[`{device.name}`](device-sources.md#{anchor(device.name)})",
        *map(_figure, figures),
        device.interconnect if link else "",
        _figure(link.bandwidth / 1e9) if link else "",
        _figure(device.power),
        f"{device.price_per_hour:.2f}" if device.price_per_hour else "–",
        device.label or device.name,
    ]


def _figure(value: float) -> str:
    if not value:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def device_sources() -> str:
    """docs/reference/device-sources.md: for each device, every figure with its source."""
    parts = [SOURCES]
    for name in catalog.names("hardware"):
        device = catalog.hardware(name)
        aliases = f" Also: {', '.join(map(code, device.aliases))}." if device.aliases else ""
        parts.append(f"## {name}\n\n{device.label or name}.{aliases}\n\n")
        parts.append(table(["figure", "source"], [[code(key), text] for key, text in device.source.items()]) + "\n")
    return "".join(parts).rstrip() + "\n"


def models() -> str:
    """docs/reference/models.md: a table of all models, by family."""
    rows = []
    for name in catalog.names("models"):
        entry = catalog.model(name)
        built = families.build(entry.config, name)
        numbers = ", ".join(sorted(set(built.quantization.values()))) or built.dtype
        limit = f"{built.max_position:,}" if built.max_position else "–"
        row = [code(name), built.family, count(parameters(built)), count(active_parameters(built))]
        rows.append([*row, str(built.num_layers), limit, numbers, code(entry.hf_id)])
    head = ["name", "family", "parameters", "active", "layers", "context", "format", "Hugging Face"]
    parts = [MODELS, table(head, rows, numbers=head[2:6])]
    types = ", ".join(code(name) for name in families.families())
    parts.append(f"\n## Model types\n\nA `config.json` with one of these values of `model_type` is read: {types}.\n")
    return "".join(parts)


def formats() -> str:
    """docs/reference/formats.md: number formats, hosts and use cases."""
    rows = [
        [code(p.name), f"{p.bits:g}", f"{p.bytes:.4g}", ", ".join(p.compute) or "the model's", p.label, p.source]
        for p in catalog.precisions().values()
    ]
    head = ["name", "bits", "bytes per weight", "computes in", "what it is", "source"]
    parts = [FORMATS, table(head, rows, numbers=head[1:3])]
    hosts = [host(name) for name in catalog.names("hosts")]
    parts.append(
        "\n## Hosts\n\n`--host-profile` takes these names, or the file that `profile --launches` or `profile "
        "--quick` wrote.\n\n"
    )
    head = ["name", "launch µs", "slowdown", "what it is", "source"]
    rows = [
        [code(h.name), f"{h.launch * 1e6:g}", f"{h.slowdown:g}", h.label, h.source.get("launch", "")] for h in hosts
    ]
    parts.append(table(head, rows, numbers=head[1:3]))
    parts.append("\n## Use cases\n\n`--usecase` takes these names: lengths, and what users expect.\n\n")
    cases = catalog.usecases().values()
    head = ["name", "tokens in", "tokens out", "batch", "beams", "TTFT s", "TPOT s", "source"]
    uses: list[list[object]] = [
        [
            code(u.name),
            *(f"{n:,}" for n in (u.input_len, u.output_len, u.batch_size, u.beam_width)),
            u.ttft,
            u.tpot,
            u.source,
        ]
        for u in cases
    ]
    parts.append(table(head, uses, numbers=head[1:7]))
    return "".join(parts)


def struct_table(struct: type, left_out: tuple[str, ...] = ("name",)) -> str:
    """A file's keys, but for those that are filled in later: ``struct_table(Hardware)``"""
    rows = []
    for field in fields(struct):
        if field.name not in left_out:
            default = "required" if not field.default else "–" if field.default == "null" else code(field.default)
            kind = kind_name(field.kind, lambda inner: inner.__name__).replace(" or null", "")
            rows.append([code(field.name), kind, default, field.meaning])
    return table(["key", "type", "default", "meaning"], rows)
