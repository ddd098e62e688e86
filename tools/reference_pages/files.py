"""docs/reference/files.md: the keys and columns of every file that the commands read or write."""

from __future__ import annotations

import inspect

from inferometer.costs.kernels.kernel_rows import HEADER, SHAPE_DEFAULTS, SHAPE_KEYS
from inferometer.network.families.network_file import PARTS, TOP
from inferometer.profiling.layer_csv import COLUMNS as LAYER_COLUMNS
from inferometer.serving.benchmark_files import BENCHMARK_FORMATS
from inferometer.serving.trace_formats import OURS_MAY_HAVE, TRACE_FORMATS
from inferometer.specs.structs import (
    Calibration,
    ComputeRule,
    Engine,
    ExpertKernel,
    Figure,
    Hardware,
    Host,
    HostedEngine,
    Kernel,
    Link,
    Precision,
    Rule,
)
from inferometer.validation.validate import LENGTH_COLUMNS, MEMORY_COLUMNS

from .catalogue import struct_table
from .markdown import code, table
from .struct_fields import MEANINGS

HEAD = """# File formats

Every file that the commands read or write, key by key. TOML files are strict: an unknown key is an error that names
the nearest one. Units are SI.
[Files](../files.md) says how files are read and written: pipes, packed files, standard input.

| file | flag |
|---|---|
| [traces](#traces), [results of benchmarks](#results-of-benchmarks) | `--trace`, `validate --measured` |
| [measured memory](#measured-memory) | `validate --memory` |
| [kernel profiles](#kernel-profiles), [layer profiles](#layer-profiles) | `profile`, `--profile` |
| [hardware files](#hardware-files) | `--gpu ./mychip.toml` |
| [engine files](#engine-files) | `--engine ./mine.toml` |
| [host files](#host-files) | `--host-profile`, `--profile machine.toml` |
| [calibrations](#calibrations) | `--calibration`, `validate --write-calibration` |
| [entries of the catalogue](#entries-of-the-catalogue), [networks](#networks) | `MODEL` |
| [configs](#configs) | `--config`, `--save-config` |

"""
FILLED_IN = ("name", "defaults", "host", "host_launch", "prefill_factor", "decode_factor")


def page() -> str:
    """The whole page."""
    return "".join([HEAD, _traces(), _benchmarks(), _memory(), _profiles(), _specs(), _models(), _configs()])


def _traces() -> str:
    rows = [[code(name), MEANINGS["columns"][name]] for name in ("input_tokens", "output_tokens", *OURS_MAY_HAVE)]
    others = [
        [known.name, ", ".join(map(code, known.needs)), ", ".join(map(code, known.may_have))]
        for known in TRACE_FORMATS[1:]
    ]
    return (
        "## Traces\n\nCSV, JSON Lines or Parquet with a row per request. `input_tokens` and `output_tokens` "
        "are needed.\n\n"
        + table(["column", "meaning"], rows)
        + "\nThese are recognised by their columns, too. Any other file works with `--columns "
        "input_tokens=THEIRS,…`.\n\n" + table(["format", "columns", "may have"], others) + "\n"
    )


def _benchmarks() -> str:
    rows = [[known.name, ", ".join(map(code, known.needs))] for known in BENCHMARK_FORMATS]
    return (
        "## Results of benchmarks\n\nJSON, recognised by its keys. With one entry per request "
        "(`--save-detailed`) latencies are compared "
        "request by request, else as means and percentiles.\n\n" + table(["file", "known by"], rows) + "\n"
    )


def _memory() -> str:
    rows = [[code(name), "Tokens."] for name in LENGTH_COLUMNS]
    rows += [[code(column), f"Measured `{what}`, MiB."] for what, column in MEMORY_COLUMNS.items()]
    return "## Measured memory\n\nCSV with a row per measurement.\n\n" + table(["column", "meaning"], rows) + "\n"


def _profiles() -> str:
    shapes = [[code(kind), " ".join(_size(key) for key in keys)] for kind, keys in SHAPE_KEYS.items()]
    kernel = (
        f"## Kernel profiles\n\nCSV with the columns {', '.join(map(code, HEADER))}. `shape` is one cell, "
        "such as `m=8 n=4096 k=4096`; its keys "
        "depend on the kind. Keys in brackets may be left out. `seconds` are of one call, in a CUDA graph "
        "where the machine has them.\n\n"
    )
    layers = (
        f"## Layer profiles\n\nCSV with LLM-Profile's columns: {', '.join(map(code, LAYER_COLUMNS))}. `input` "
        "are new tokens of one sequence, "
        "`kv_cache` those before them: `128, 0` is a prompt, `1, 128` a decode step. A JSON file of the same "
        "name beside it says how the rows were taken.\n\n"
    )
    return kernel + table(["kind", "shape"], shapes) + "\n" + layers


def _size(key: str) -> str:
    return code(f"[{key}]" if key in SHAPE_DEFAULTS else key)


def _specs() -> str:
    sections: dict[str, tuple[str, dict[str, type]]] = {
        "Hardware files": (
            "TOML. The name of the file is the name of the device. [Hardware](../hardware.md) explains it "
            "with an example.",
            {"": Hardware, "Tables `[links.NAME]`:": Link},
        ),
        "Engine files": (
            'TOML. `like = "vllm"` takes everything from another engine that the file does not have itself.',
            {
                "": Engine,
                "Tables `[[when]]`, rules that set defaults:": Rule,
                "Tables `[kernels.KIND]`, where nothing was measured:": Kernel,
                "Tables `[[compute]]`, which kernels run a precision:": ComputeRule,
                "Tables `[[expert_kernels]]`:": ExpertKernel,
            },
        ),
        "Host files": (
            "TOML, as `profile --launches` and `profile --quick` write it.",
            {"": Host, "Tables `[engines.NAME]`:": HostedEngine, "Tables `[figures.NAME]`:": Figure},
        ),
        "Calibrations": ("TOML, as `validate --write-calibration` writes it.", {"": Calibration}),
        "Number formats": ("Tables of `data/precisions.toml`, by name.", {"": Precision}),
    }
    parts = []
    for title, (note, structs) in sections.items():
        parts.append(f"## {title}\n\n{note}\n\n")
        for lead, struct in structs.items():
            parts.append((f"{lead}\n\n" if lead else "") + struct_table(struct, FILLED_IN) + "\n")
    return "".join(parts)


def _models() -> str:
    entry = [[code(name), text] for name, text in MEANINGS["entry"].items()]
    top = [[code(name), MEANINGS["network"][name]] for name in sorted(TOP)]
    blocks = []
    for name, function in PARTS.items():
        known = inspect.signature(function).parameters
        plain = {
            k: p
            for k, p in known.items()
            if p.annotation in ("int", "bool", "str") and k not in ("span", "hidden_size")
        }
        needs = [code(k) for k, p in plain.items() if p.default is inspect.Parameter.empty]
        others = [code(k) for k, p in plain.items() if p.default is not inspect.Parameter.empty]
        window = [code("window")] if "span" in known else []
        blocks.append([code(name), ", ".join(needs), ", ".join([*others, *window])])
    return (
        "## Entries of the catalogue\n\nTOML, `data/models/NAME.toml`; a path of your own works as `MODEL`, too.\n\n"
        + table(["key", "meaning"], entry)
        + "\n## Networks\n\nTOML that describes a network by hand; "
        "[models](../models.md#a-network-of-your-own) has an example.\n\n"
        + table(["key", "meaning"], top)
        + "\nBlocks, each a table of `blocks` with its name as `block`:\n\n"
        + table(["block", "needs", "may have"], blocks)
        + "\n"
    )


def _configs() -> str:
    return (
        "## Configs\n\nTOML or JSON whose keys are the long names of a command's [flags](../flags.md), with "
        "dashes or underscores: "
        "`batch-size = 8`. `model` is the argument. A table named after a command, `[analyze]`, is for that "
        "command alone. What is typed stands before the file. "
        "`--save-config FILE` writes one.\n"
    )
