// Numbers as people read them: three digits, SI prefixes, units spelled out. GB = 1e9. base/units.py says the same.

const STEPS = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
];
const SHORT = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
  [1e-9, "ns"],
];
const LONG = [
  // from, unit
  [730.5 * 86400, 365.25 * 86400, "years"],
  [172800, 86400, "days"],
  [7200, 3600, "h"],
  [600, 60, "min"],
];
const UP = 1 + 1e-12; // a five at the end is rounded away from zero, as written
const lacks = (value) => value === null || value === undefined || Number.isNaN(value);

// Three significant digits, zeros too, so that columns keep their width:
// figure(11) "11.0" · figure(1234.5) "1,235" · figure(0.01234) "0.0123"
export function figure(value, places = 3) {
  if (lacks(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const text = (value * UP).toPrecision(places);
  if (!text.includes("e")) return text;
  const rounded = Number(text);
  if (Math.abs(rounded) >= 1) return Math.round(value).toLocaleString("en-US");
  return rounded.toFixed(Math.min(places - 1 - Math.floor(Math.log10(Math.abs(rounded))), 100));
}

// Counts and ticks, no longer than they need to be: digits(1234.5) "1,235" · digits(12.345) "12.3" · digits(0.1) "0.1"
export function digits(value, places = 3) {
  if (lacks(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const text = figure(value, places);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// si(3.35e12, "B/s") "3.35 TB/s"
export function si(value, unit = "", text = figure) {
  if (lacks(value)) return "–";
  if (value === 0) return `0 ${unit}`.trim();
  const [scale, prefix] = STEPS.find(([step]) => Math.abs(value) >= step * 0.9995) ?? STEPS.at(-1);
  return `${text(value / scale)} ${prefix}${unit}`.trim();
}

// seconds(0.00412) "4.12 ms" · seconds(5e6) "57.9 days"
export function seconds(value) {
  if (lacks(value)) return "–";
  if (value === 0) return "0 s";
  const long = Number.isFinite(value) && LONG.find(([least]) => Math.abs(value) >= least);
  if (long) return `${figure(value / long[1])} ${long[2]}`;
  const [scale, unit] = SHORT.find(([step]) => Math.abs(value) >= step * 0.9995) ?? SHORT.at(-1);
  return `${figure(value / scale)} ${unit}`;
}

export const milliseconds = (value) => (lacks(value) ? "–" : seconds(value / 1e3));
export const bytes = (value) => si(value, "B");
export const count = (value) => si(value).replace("G", "B");

// Two decimals, three below a dollar: money(19.138) "$19.14" · money(0.19138) "$0.191"
export function money(value) {
  if (lacks(value)) return "–";
  const size = Math.abs(value);
  if (size >= 999.995 || size < 0.0995) return `$${figure(value)}`;
  return `$${(value * UP).toFixed(size >= 0.9995 ? 2 : 3)}`;
}

export function percent(share, places = 1) {
  if (lacks(share)) return "–";
  if (share > 0 && share < 0.0005) return "<0.1%";
  return share >= 0.9995 && share < 1.0005 ? "100%" : `${(share * UP * 100).toFixed(places)}%`;
}

// change(110, 100) "+10.0%" · change(250, 100) "×2.50"
export function change(now, before) {
  if (!now || !before) return "";
  const ratio = now / before;
  if (Math.abs(ratio - 1) < 0.0005) return "±0%";
  if (ratio >= 2) return `×${figure(ratio)}`;
  return `${ratio > 1 ? "+" : "−"}${Math.abs((ratio - 1) * 100).toFixed(1)}%`;
}

// size([16, 4096]) "16 × 4096"; nothing of a tensor that has no elements
export function size(shape) {
  if ((shape ?? []).includes(0)) return "";
  return (shape ?? [])
    .map((n) => (Math.abs(n - Math.round(n)) < 1e-6 ? String(Math.round(n)) : digits(n, 4)))
    .join(" × ");
}

// capital("prefill") "Prefill"
export const capital = (word) => word[0].toUpperCase() + word.slice(1);

// spaced("kv_cache") "kv cache"
export const spaced = (name) => name.replaceAll("_", " ");

// Rows of a chart as CSV: csv([{ name: "a,b", value: 1 }])
export function csv(rows) {
  const heads = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    const text =
      value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return (
    [heads, ...rows.map((row) => heads.map((head) => row[head]))].map((line) => line.map(cell).join(",")).join("\n") +
    "\n"
  );
}
