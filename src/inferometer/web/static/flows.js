// What travels, as bars: one for each operator of a stage, over all its links; as long as its share of the phase.
import { s } from "./dom.js";
import { bytes, percent, seconds, si } from "./format.js";
import { palette } from "./theme.js";

const ROW = 40;
const SHOWN = 14;

const text = (x, y, content, extra = {}) =>
  s("text", { x, y, "font-size": 11.5, fill: palette().muted, ...extra }, content);

// Rows of one operator over two links take the same time: { …, over: [["nvlink", 1.4e6], ["network", 5e7]] }
function joined(rows) {
  const whole = new Map();
  for (const row of rows) {
    const key = `${row.stage} ${row.operator} ${row.axis} ${row.ranks}`;
    if (!whole.has(key)) whole.set(key, { ...row, over: [] });
    whole.get(key).over.push([row.link, row.bytes]);
  }
  return [...whole.values()];
}

// bars(rows, { wide, several, link }) -> svg
export function bars(rows, { wide, several, link }) {
  const p = palette();
  const sorted = joined(rows).sort((a, b) => b.seconds - a.seconds);
  const shown = sorted.slice(0, SHOWN);
  const most = Math.max(...shown.map((row) => row.share), 1e-9);
  const high = shown.length * ROW + (sorted.length > SHOWN ? 20 : 4);
  const line = (row, i) => {
    const y = i * ROW + 4;
    const figures = `${seconds(row.seconds)} · ${percent(row.share)}`;
    const name = `${several ? `stage ${row.stage} · ` : ""}${row.operator}`;
    const over = row.over.map(([way, amount]) => `${bytes(amount)} over ${link(way)}`).join(", ");
    const rate = `${si(row.bandwidth, "B/s")} of ${si(row.peak_bandwidth, "B/s")}`;
    const group = row.axis === "host" ? "" : `${row.axis} ${row.ranks}`;
    const sum = bytes(row.over.reduce((total, [, amount]) => total + amount, 0));
    const room = (wide - figures.length * 6.6 - 16) / 6.4 - name.length;
    const more =
      [[group, over, rate], [group, over], [sum]]
        .map((parts) =>
          parts
            .filter(Boolean)
            .map((part) => ` · ${part}`)
            .join(""),
        )
        .find((text) => text.length <= room) ?? "";
    return [
      s("text", { x: 0, y: y + 12, "font-size": 12, fill: p.ink }, name, s("tspan", { fill: p.muted }, more)),
      text(wide, y + 12, figures, { "text-anchor": "end", fill: p.ink }),
      s("rect", { x: 0, y: y + 19, width: wide, height: 8, rx: 3, fill: p.grid }),
      s("rect", { x: 0, y: y + 19, width: Math.max(1.5, (row.share / most) * wide), height: 8, rx: 3, fill: p.green }),
    ];
  };
  return s(
    "svg",
    { width: wide, height: Math.max(high, 8), viewBox: `0 0 ${wide} ${Math.max(high, 8)}`, class: "fits" },
    shown.map(line),
    sorted.length > SHOWN && text(0, high - 6, `${sorted.length - SHOWN} smaller ones not drawn; the table has all`),
  );
}
