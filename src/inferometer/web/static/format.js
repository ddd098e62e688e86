// Numbers as people read them: three digits, SI prefixes, units spelled out. GB = 1e9.

const STEPS = [
  [1e18, "E"],
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
  [1e-3, "m"],
  [1e-6, "µ"],
  [1e-9, "n"],
];

// digits(1234.5) "1,234" · digits(12.345) "12.3" · digits(0.01234) "0.0123"
export function digits(value, places = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 10 ** places || (size >= 1000 && Number.isInteger(value)))
    return Math.round(value).toLocaleString("en-US");
  if (size === 0) return "0";
  const text = value.toPrecision(places);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// si(3.35e12, "B/s") "3.35 TB/s"
export function si(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return `0 ${unit}`.trim();
  const [scale, prefix] = STEPS.find(([step]) => Math.abs(value) >= step * 0.9995) ?? STEPS.at(-1);
  return `${digits(value / scale)} ${prefix}${unit}`.trim();
}

export const seconds = (value) => (value >= 1 ? `${digits(value)} s` : si(value, "s"));
export const milliseconds = (value) => (value === null || value === undefined ? "–" : seconds(value / 1e3));
export const bytes = (value) => si(value, "B");
export const count = (value) => si(value).replace("G", "B");

export function percent(share, places = 1) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  if (share > 0 && share < 0.0005) return "<0.1%";
  return `${(share * 100).toFixed(share >= 0.9995 ? 0 : places)}%`;
}

// change(110, 100) "+10.0%" · change(250, 100) "×2.5"
export function change(now, before) {
  if (!now || !before) return "";
  const ratio = now / before;
  if (Math.abs(ratio - 1) < 0.0005) return "±0%";
  if (ratio >= 2) return `×${digits(ratio)}`;
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
