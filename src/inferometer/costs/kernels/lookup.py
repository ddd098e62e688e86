"""Kernels by shape as sources: measured curves (●), fitted surfaces (◐; ○ of devices of another generation)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...base.symbols import Value, maximum_of, minimum_of, scalar
from ...network.operators import Op
from ...specs import catalog
from ...specs.structs import Hardware
from .. import precision
from .kernel_rows import head_label
from .registry import (
    Donor,
    KernelProfile,
    MeasuredCurves,
    Reach,
    TimedRow,
    donors,
    installed,
    peak_flops,
    reach,
    read_profile,
)
from .source import Source, Terms, p_norm
from .surfaces import SHAPES, RowTiles, Shape, SplitTiles, Surface, head_table_key, surface_seconds

# Which table serves a format that has none: its kernels are built alike, and the base has its bytes and its peak.
SIMILAR_FORMATS = {
    "fp16": ("bf16",),
    "fp32": ("bf16",),
    "fp8": ("fp8-block",),
    "fp8-block": ("fp8",),
    "mxfp8": ("fp8-block", "fp8"),
    "int8": ("fp8",),
    "w8a16": ("w4a16", "bf16"),
    "w4a16": ("mxfp4-marlin", "mxfp4", "bf16"),
    "mxfp4": ("mxfp4-marlin", "w4a16", "bf16"),
    "mxfp4-marlin": ("w4a16", "mxfp4", "bf16"),
    "mxfp4-mxfp8": ("mxfp8", "nvfp4", "fp8-block", "fp8", "bf16"),
    "nvfp4": ("fp8", "bf16"),
    "int4": ("w4a16", "bf16"),
    "int2": ("w4a16", "bf16"),
}


ROUNDED = ("fp8", "fp8-block", "mxfp8", "int8")  # formats in which the input is rounded before the product
WIDENED = ("fp32-ieee",)  # formats in which it is widened: 2 bytes read and 4 written, twice the 3 of rounding


STATEFUL = ("chunk_scan", "state_update")  # kinds whose tables are by the format of the state that they keep


class Formats(NamedTuple):
    """Number formats of a plan, as kernels know them: ``Formats({"attn": "fp8", "mlp": "fp8"}, cache="fp8")``"""

    roles: Mapping[str, str]  # role -> precision that its products run as
    cache: str = "bf16"
    rounding: Callable[[Value], Value] = lambda elements: 0.0  # s to round so many elements of an input to 8 bits
    state: str = "fp32"  # of recurrent layers
    row_tiles: bool = True  # products take rows, and decode attention contexts, as the profiles' kernels do

    def of(self, op: Op) -> str:
        """The format that an operator's table is chosen by: ``formats.of(op)  # "fp8"``"""
        return self.state if op.kind in STATEFUL else self.roles.get(op.role, "bf16")


def lookup_key(op: Op, dims: Mapping[str, Value], tables: Mapping[str, object], formats: Formats) -> tuple[str, bool]:
    """The key of an operator's table, and whether it is of its own format; '' where none serves it."""
    if op.kind.endswith("_attention"):
        label = head_label(dims["qk_dim"], dims["v_dim"])
        key = head_table_key(label, tables, formats.cache)
        return key, key == label + ("-fp8" if formats.cache == "fp8" else "")
    dtype = formats.of(op)
    for number, similar in enumerate((dtype, *SIMILAR_FORMATS.get(dtype, ()))):
        if similar in tables:
            return similar, number == 0 or (dtype, similar) == ("fp16", "bf16")
    return "", False


class KernelLookup:
    """Seconds of the kinds of kernels that a device's own profile has: roofline base × ratio, from curves or surfaces.

    ``KernelLookup(profile, formats).source()``; ``exact``: measured curves alone, at the very shape;
    ``own_format``: no table of a similar format may serve; ``user_rows``: what surfaces are moved to.
    """

    def __init__(
        self,
        profile: KernelProfile,
        formats: Formats,
        *,
        exact: bool = False,
        own_format: bool = False,
        user_rows: UserRows | None = None,
    ) -> None:
        self.profile, self.formats, self.exact = profile, formats, exact
        self.own_format = own_format or exact
        self.user_rows = user_rows or UserRows(())
        self.kinds = frozenset(profile.measured if exact else profile.fitted) & frozenset(SHAPES)
        self._keys: dict[tuple[Any, ...], tuple[str, bool]] = {}  # what `lookup_key` said, by kind and role or head

    def answer(self, op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        """Seconds of a call, nan where the profile has no such shape."""
        d = dims()
        if _is_grouped(op, d):
            return float("nan")
        tables: Mapping[str, Any] = (self.profile.measured if self.exact else self.profile.fitted)[op.kind]
        key, own_format = self._key(op, d, tables)
        if not key or (self.own_format and not own_format):
            return float("nan")
        shape = SHAPES[op.kind]
        tiles = self.profile.tiles(op.kind, key) if own_format and self.formats.row_tiles else None
        if self.exact:
            timed, worked, added = tiles.worked(d, terms) if tiles is not None else (d, terms, 0.0)
            timed = shape.as_timed(timed, tables[key].axes)
            took = shape.base(worked, timed) * 2.0 ** _measured_ratio(tables[key], shape, timed) + added
        else:
            surface_of = functools.partial(self.profile.surface_key, op.kind, key)
            lighter = octaves_lighter(op, self.formats, key)
            took = surface_seconds(tables[surface_of(d)], shape, d, terms, lighter, tiles)
            if self.user_rows:
                took = took * self.user_rows.factor(
                    op.kind, key, lambda d, terms: surface_seconds(tables[surface_of(d)], shape, d, terms, tiles=tiles)
                )
        if own_format and self.formats.row_tiles and (splits := self.profile.splits(op.kind, key)):
            took = took * splits.factor(d)
        took = maximum_of(took, terms.roofline) + _rounding_seconds(op, d, self.formats, self.profile)
        return took * (terms.memory > 0)

    def _key(self, op: Op, d: Mapping[str, Value], tables: Mapping[str, Any]) -> tuple[str, bool]:
        place = (op.kind, d["qk_dim"], d["v_dim"]) if op.kind.endswith("_attention") else (op.kind, op.role)
        if place not in self._keys:
            self._keys[place] = lookup_key(op, d, tables, self.formats)
        return self._keys[place]

    def origin(self, op: Op) -> str:
        """Measured or fitted."""
        return "measured" if self.exact else "fitted"

    def note(self, op: Op) -> str:
        """Which figures they are, and of which device."""
        how = "a curve measured at this exact shape" if self.exact else "a surface fitted over shapes"
        return f"{op.kind}: {how} on {self.profile.device.upper()} ({self.profile.source})"

    def source(self) -> Source:
        """As a source among others."""
        return Source(self.origin, self.answer, self.note, self.kinds)


def octaves_lighter(op: Op, formats: Formats, key: str) -> float:
    """Octaves by which the bytes of a call are fewer than a table's: ``w4a16`` with the table of ``bf16``: 1.91."""
    if op.kind == "decode_attention":
        return 1.0 if formats.cache == "fp8" and not key.endswith("-fp8") else 0.0
    numbers, dtype = catalog.precisions(), formats.of(op)
    return math.log2(numbers[key].bytes / numbers[dtype].bytes) if {key, dtype} <= numbers.keys() else 0.0


def _is_grouped(op: Op, d: Mapping[str, Value]) -> bool:
    return op.kind == "linear" and not (scalar(d["groups"]) and d["groups"] == 1)


def _rounding_seconds(op: Op, d: Mapping[str, Value], formats: Formats, profile: KernelProfile) -> Value:
    """Seconds of the pass that rounds an 8-bit product's input, or widens it, where the profile's times have it not."""
    if op.kind != "linear" or profile.rounds or formats.roles.get(op.role) not in (*ROUNDED, *WIDENED):
        return 0.0
    return formats.rounding(d["m"] * d["k"] * (2 if formats.roles[op.role] in WIDENED else 1))


class UserRows:
    """A user's own timings: what others' surfaces are multiplied by, table by table."""

    def __init__(self, rows: Sequence[TimedRow]) -> None:
        self.tables: dict[tuple[str, str], list[TimedRow]] = {}
        for row in rows:
            self.tables.setdefault((row.kind, row.table_key), []).append(row)
        self.factors: dict[tuple[str, str], float] = {}

    def __bool__(self) -> bool:
        return bool(self.tables)

    def has(self, kind: str, key: str) -> bool:
        """Whether a table has rows of the user: ``rows.has("linear", "bf16")``"""
        return (kind, key) in self.tables

    def factor(self, kind: str, key: str, predicted: Callable[[dict[str, Any], Terms], Value]) -> float:
        """The median of timed over predicted seconds of the rows of a table; 1 where there are none."""
        table = kind, key
        if table not in self.factors:
            off = sorted(
                row.seconds / float(predicted(row.dims, Terms(row.compute, row.memory, 0.0, 0.0)))
                for row in self.tables.get(table, ())
            )
            self.factors[table] = off[len(off) // 2] if off else 1.0
        return self.factors[table]


# ------------------------------------------------------------------ kernels of other devices

MAX_DONORS = 2  # whose answers are averaged
LEAST_WEIGHT = 0.1  # of the nearest donor's: one that is much farther away says nothing more


class DonorTable(NamedTuple):
    """The surface of one donor that serves a kernel, and how the donor compares with the device, as factors."""

    donor: Donor
    profile: KernelProfile
    key: str
    surface: Surface
    compute: float  # the donor's roofline seconds over the device's, in the format of the product
    memory: float
    units: float  # SMs × clock of the donor over the device's
    reach: tuple[Reach, Reach]  # of the donor and of the device
    lighter: float = 0.0  # octaves by which the call's bytes are fewer than the table's
    tiles: RowTiles | None = None  # how the donor's kernel takes its rows; in the mean for another generation's
    splits: SplitTiles | None = None  # how it cuts contexts, on a device of its generation

    def carried(
        self, there: Value, shape: Shape, d: Mapping[str, Value], terms: Terms, *, as_donor: bool = False
    ) -> Value:
        """Seconds of a call on the device, where the donor takes ``there`` for the same shape.

        The donor's seconds have two parts. What its memory and its matrix units need at the shares of their peaks
        that good kernels reach scales with those peaks. All that is above (launches, ramps, softmax, widening of
        weights) is the work of SMs and scales with their number and clock; in a product, as far as it computes, it is
        waves of the matrix units. Where the donor is faster than its best kernels (inputs in its cache) so is the
        device. ``as_donor``: the device reaches what the donor does.
        """
        padding = shape.padding(d)
        reach, device_reach = self.reach[0], self.reach[not as_donor]
        compute, memory = terms.compute * self.compute, terms.memory * self.memory
        busy_there = p_norm(compute / reach.flops, memory / reach.memory, 3) * padding
        busy = p_norm(terms.compute / device_reach.flops, terms.memory / device_reach.memory, 3) * padding
        spent = minimum_of(there, busy_there)
        slower: Value = self.units
        if shape.product:
            slower = self.units + (1 / self.compute - self.units) * compute / maximum_of(compute + memory, 1e-300)
        return busy * spent / maximum_of(busy_there, 1e-300) + (there - spent) * slower

    def there(self, shape: Shape, d: Mapping[str, Value], terms: Terms) -> Value:
        """Seconds of the same call on the donor."""
        moved = terms._replace(compute=terms.compute * self.compute, memory=terms.memory * self.memory)
        seconds = surface_seconds(self.surface, shape, d, moved, self.lighter, self.tiles)
        return seconds * self.splits.factor(d) if self.splits else seconds

    @property
    def bounds(self) -> tuple[bool, bool]:
        """Whether the donor's seconds bound the device's from below and from above: equal devices have one figure.

        A device that is better than a donor of its generation in everything is never slower, a worse one never faster.
        """
        flops, memory = self.reach[1].flops / self.reach[0].flops, self.reach[1].memory / self.reach[0].memory
        better = (self.compute, self.compute * flops, self.memory, self.memory * memory, 1 / self.units)
        return self.donor.same_generation and max(better) <= 1, self.donor.same_generation and min(better) >= 1


class TransferLookup:
    """Seconds of kernels on a device without tables of its own, from those of its donors.

    ``TransferLookup(device, donors(device, "vllm"), formats).source()``: the mean over the two nearest donors that have
    the number format, weighted by how near they are; ``own_format``: no table of a similar format may serve.
    """

    def __init__(
        self,
        device: Hardware,
        donors: Sequence[Donor],
        formats: Formats,
        *,
        own_format: bool = False,
        user_rows: UserRows | None = None,
        changed: Hardware | None = None,
    ) -> None:
        self.device, self.donors, self.formats = device, tuple(donors), formats
        self.changed = (
            changed if changed != device else None
        )  # the device with other figures: kernels keep their ratios
        self.own_format, self.user_rows = own_format, user_rows or UserRows(())
        self.reach = reach(device)
        self.tables: dict[tuple[object, ...], list[DonorTable]] = {}

    def answer(self, op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        """Seconds of a call, nan where no donor has such a table."""
        d = dims()
        if _is_grouped(op, d):
            return float("nan")
        label = (d["qk_dim"], d["v_dim"]) if op.kind.endswith("_attention") else (self.formats.of(op),)
        where = (op.kind, *label)
        if where not in self.tables:
            self.tables[where] = self.donor_tables(op, d)
        tables = self.tables[where]
        if not tables:
            return float("nan")
        nominal, shape = self._nominal_terms(op, terms), SHAPES[op.kind]
        took = self.seconds(op.kind, tables, d, nominal)
        if nominal is not terms:
            took = took * shape.base(terms, d) / shape.base(nominal, d)
        took = maximum_of(took, terms.roofline)
        return (took + _rounding_seconds(op, d, self.formats, tables[0].profile)) * (terms.memory > 0)

    def _nominal_terms(self, op: Op, terms: Terms) -> Terms:
        """The terms of a call on the device as its data sheet has it: the ratio there is kept where figures change."""
        if self.changed is None:
            return terms
        number_format = self._peak_format(op)
        faster = _peak(self.changed, number_format) / _peak(self.device, number_format)
        wider = self.changed.memory_bandwidth / self.device.memory_bandwidth
        return terms._replace(compute=terms.compute * faster, memory=terms.memory * wider)

    def seconds(self, kind: str, tables: Sequence[DonorTable], d: Mapping[str, Value], terms: Terms) -> Value:
        """The mean of what the donors say, moved to the user's own rows where there are any."""
        key = tables[0].key
        if self.user_rows.has(kind, key):
            factor = self.user_rows.factor(
                kind, key, lambda d, terms: mean_seconds(kind, tables, d, terms, as_donor=True)
            )
            return factor * mean_seconds(kind, tables, d, terms, as_donor=True)
        return mean_seconds(kind, tables, d, terms)

    def donor_tables(self, op: Op, d: Mapping[str, Value]) -> list[DonorTable]:
        """The tables that serve an operator: of its own number format, else of a similar one."""
        key_of = functools.partial(lookup_key, op, d, formats=self.formats)
        chosen = self.choose(op.kind, key_of, self._peak_format(op))
        return [one._replace(lighter=octaves_lighter(op, self.formats, one.key)) for one in chosen]

    def _peak_format(self, op: Op) -> str:
        """The format whose peak an operator can reach; '' for those that compute in 16 bits whatever they store."""
        return "" if op.kind.endswith("_attention") or op.kind in STATEFUL else self.formats.of(op)

    def choose(
        self, kind: str, key_of: Callable[[Mapping[str, object]], tuple[str, bool]], number_format: str
    ) -> list[DonorTable]:
        """The tables of the nearest donors; ``key_of`` says which of some serves, and if it is of the very format."""
        for own_format in (True,) if self.own_format else (True, False):
            chosen: list[DonorTable] = []
            for donor in self.donors:
                if chosen and donor.weight < LEAST_WEIGHT * chosen[0].donor.weight:
                    break
                for engine in donor.engines:
                    profile = read_profile(donor.device.name, engine)
                    key, is_own = key_of(profile.fitted[kind]) if profile and kind in profile.fitted else ("", False)
                    if profile and key and (is_own or not own_format):
                        chosen.append(self._table(donor, profile, kind, key, number_format))
                        break
                if len(chosen) == MAX_DONORS:
                    break
            if chosen:
                return chosen
        return []

    def _table(self, donor: Donor, profile: KernelProfile, kind: str, key: str, number_format: str) -> DonorTable:
        other, device = donor.device, self.device
        same_format = number_format if key == number_format else ""  # a similar one keeps the ratio of 16-bit peaks
        peaks = [_peak(one, same_format) for one in (other, device)]
        speeds = [one.compute_units * one.clock for one in (other, device)]
        tiles = profile.tiles(kind, key) if self.formats.row_tiles and key == number_format else None
        if tiles is not None and other.architecture != device.architecture:
            tiles = replace(tiles, mean=True)
        splits = profile.splits(kind, key) if self.formats.row_tiles and donor.same_generation else None
        table = (donor, profile, key, profile.fitted[kind][key])
        units = speeds[0] / speeds[1] if all(speeds) else 1.0
        ratios = (peaks[1] / peaks[0], device.memory_bandwidth / other.memory_bandwidth, units)
        return DonorTable(*table, *ratios, (reach(other), self.reach), tiles=tiles, splits=splits)

    def _used(self, op: Op) -> list[Donor]:
        """Whose tables an operator's last answer came from."""
        tables = [tables for (kind, *_), tables in self.tables.items() if kind == op.kind and tables]
        return [table.donor for table in tables[-1]] if tables else list(self.donors[:1])

    def origin(self, op: Op) -> str:
        """Fitted where the figures are of the same generation, else assumed."""
        return "fitted" if all(donor.same_generation for donor in self._used(op)) else "assumed"

    def note(self, op: Op) -> str:
        """Which devices' figures they are, and how far those are."""
        names = " and ".join(donor.label for donor in self._used(op))
        return f"{op.kind}: surfaces fitted on {names}, scaled by memory bandwidth, matrix units and SMs"

    def source(self) -> Source:
        """As a source among others."""
        return Source(self.origin, self.answer, self.note, frozenset(SHAPES))


def mean_seconds(
    kind: str, tables: Sequence[DonorTable], d: Mapping[str, Value], terms: Terms, *, as_donor: bool = False
) -> Value:
    """The mean of what several donors say, by weight, within what donors of the same generation allow."""
    shape = SHAPES[kind]
    total = sum(table.donor.weight for table in tables)
    there = [table.there(shape, d, terms) for table in tables]
    took: Value = 0.0
    for table, seconds in zip(tables, there, strict=True):
        took = took + table.carried(seconds, shape, d, terms, as_donor=as_donor) * (table.donor.weight / total)
    if as_donor:
        return took
    for table, seconds in zip(tables, there, strict=True):
        took = maximum_of(took, seconds) if table.bounds[0] else took
    for table, seconds in zip(tables, there, strict=True):
        took = minimum_of(took, seconds) if table.bounds[1] else took
    return took


def _peak(device: Hardware, number_format: str) -> float:
    """FLOP/s of a device in a number format, of 16-bit products for attention."""
    if not number_format:
        return peak_flops(device)
    return device.flops[precision.peak_format(device, catalog.precision(number_format), "bf16")]


def _measured_ratio(curves: MeasuredCurves, shape: Shape, d: Mapping[str, Value]) -> Value:
    """Ratios from the curve of the very shape; where sizes vary over an array, from each shape's own curve."""
    sizes, coords = shape.exact_sizes(d), shape.step_axes(d)
    if scalar(*sizes):
        values = curves.shapes.get(_curve_key(*sizes))
        return Surface(curves.axes, values).at(*coords) if values is not None else float("nan")
    import numpy as np

    *columns, first = np.broadcast_arrays(*sizes, coords[0])
    code = shape_codes([column for column, size in zip(columns, sizes, strict=True) if not scalar(size)])
    ratios = np.full(first.shape, np.nan)
    for one, at in zip(*np.unique(code, return_index=True), strict=True):
        values = curves.shapes.get(_curve_key(*(column.flat[at] for column in columns)))
        if values is not None:
            where = code == one
            ratios[where] = Surface(curves.axes, values).at(*(np.broadcast_to(x, first.shape)[where] for x in coords))
    return ratios


@functools.lru_cache(maxsize=4096)
def _curve_key(*sizes: float) -> str:
    return "x".join(f"{size:g}" for size in sizes)


def shape_codes(columns: Sequence[Any]) -> Any:
    """A number per row, equal where all sizes are: columns of sizes, arrays of one shape, packed as mixed-radix digits.

    A size's digit is its rank among the distinct values of its column, so every size counts in full, fractions too
    (experts over ranks), and the code stays below the product of the columns' distinct values. Where that product
    would leave 63 bits, the codes so far are ranked anew, of which there are at most as many as rows.
    """
    import numpy as np

    if len(columns) == 1:
        return columns[0]
    code, radix = np.zeros(columns[0].shape, np.int64), 1
    for column in columns:
        values, digit = np.unique(column, return_inverse=True)
        if radix * len(values) >= 2**63:
            distinct, code = np.unique(code, return_inverse=True)
            radix = len(distinct)
        code = code.reshape(column.shape) * len(values) + digit.reshape(column.shape)
        radix *= len(values)
    return code


def kernel_sources(
    device: Hardware,
    engine: str,
    formats: Formats,
    *,
    kinds: tuple[str, ...] = (),
    user_profile: KernelProfile | None = None,
    changed: Hardware | None = None,
) -> tuple[Source, ...]:
    """What is known of a device's kernels, best first: the user's own rows, measured curves, surfaces; others' last.

    Surfaces are moved to the user's rows, so a few shapes of an unknown GPU serve all others too. What the engine
    has of a format itself, here or on a device of the same generation, comes before tables of a similar format.
    """
    rows = UserRows(user_profile.rows if user_profile else ())
    stems = ["measured", engine] if engine == "vllm" else [engine]
    own = [one for stem in stems if (one := read_profile(device.name, stem)) is not None]
    others = [read_profile(device.name, stem) for stem in installed().get(device.name, ()) if stem not in stems]
    lookups: list[KernelLookup | TransferLookup] = []
    if user_profile is not None:
        lookups.append(KernelLookup(user_profile, formats, exact=True))
    else:
        lookups += [KernelLookup(one, formats, exact=True) for one in own if one.measured]
    lookups += [KernelLookup(one, formats, own_format=True, user_rows=rows) for one in own if one.fitted]
    every = donors(device, engine)
    relatives = [donor for donor in every if donor.same_generation]
    if relatives and engine == "vllm":
        its_own = [donor._replace(engines=tuple(reversed(stems))) for donor in relatives]  # of no other engine yet
        lookups.append(TransferLookup(device, its_own, formats, own_format=True, user_rows=rows, changed=changed))
    lookups += [KernelLookup(one, formats, user_rows=rows) for one in (*own, *others) if one and one.fitted]
    for some in (relatives, every):
        if some:
            lookups.append(TransferLookup(device, some, formats, user_rows=rows, changed=changed))
    chain = [lookup.source() for lookup in lookups]
    if kinds:
        chain = [source._replace(kinds=(source.kinds or frozenset()) & frozenset(kinds)) for source in chain]
    return tuple(chain)
