"""LLM-Profile's layers, CSV in ns: ``hardware,model,layer_name,input,kv_cache,latency(ns)``, one sequence a row.

Sizes come from the catalogue's model of that name, and so does the 16-bit format, which the file does not say. Of a
model that is not there they come from the config in the record that ``profile MODEL`` writes beside its file.
"""

from __future__ import annotations

from ...inference.layer_profile import COLUMNS, layer_kernels
from . import ImportedTable, RawTable, Unusable, row_batch, texts


def claims(columns: frozenset[str]) -> bool:
    """Whether a table has LLM-Profile's columns."""
    return set(COLUMNS) <= columns


def read(sheet: RawTable) -> ImportedTable:
    """Every layer that is a kernel of its own."""
    hardware = sorted(set(texts(sheet, "hardware")))
    if len(hardware) > 1:
        raise Unusable(f"{sheet.path} has rows of several devices: {', '.join(hardware[:8])}; a file covers one device")
    seconds = sheet.numbers("latency(ns)") * 1e-9
    kernels, skipped = layer_kernels(sheet)
    batches = [
        row_batch(kernel.kind, kernel.dtype, kernel.sizes, seconds[kernel.rows], "llm-profile torch", skipped)
        for kernel in kernels
    ]
    return ImportedTable("llm-profile layers", hardware[0] if hardware else "", batches, +skipped, {})
