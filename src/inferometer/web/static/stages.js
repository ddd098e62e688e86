// The memory of a pipeline stage over a training step as an SVG, and tables of all stages and operators.
import { s } from "./dom.js";
import { table } from "./form.js";
import { bytes, digits, percent, seconds, spaced } from "./format.js";
import { brief, legend, margins, scale, timeAxis } from "./passes.js";
import { palette } from "./theme.js";

const HIGH = 220;
const AXIS = 24;
const HALO = { "text-anchor": "end", "paint-order": "stroke", "stroke-width": 4, "stroke-linejoin": "round" };
const PARTS = [
  ["weights", "weights", "blue"],
  ["gradients", "gradients", "sky"],
  ["optimizer", "optimizer state", "green"],
  ["buffers", "buffers", "ink"],
  ["overhead", "overhead", "grey"],
  ["activation", "activations", "orange"],
  ["working", "working memory", "purple"],
];

// Seconds, and from each of them on the bytes of activations and of what is alive beside them.
function steps(own, stage, end) {
  const fixed = own.total_bytes - own.activation_bytes - own.working_bytes;
  const points = [[0, 0, 0]];
  stage.passes.start_s.forEach((start, i) => {
    const chunk = stage.passes.chunk[i];
    const beside = stage.passes.backward[i] ? stage.working_bytes[chunk] : 0;
    const kept = stage.passes.memory_bytes[i] - fixed - beside;
    points.push([start, kept, beside]);
    points.push([stage.passes.end_s[i], kept - (stage.passes.backward[i] ? own.microbatch_bytes[chunk] : 0), 0]);
  });
  return [...points, [end, points.at(-1)[1], 0]];
}

// An area between two steps of values: low and high are functions of a point
function area(points, at, y, low, high) {
  const line = (value) =>
    points.map((point, i) => {
      const from = i ? `H${at(point[0]).toFixed(2)}` : "";
      return `${from}V${y(value(point)).toFixed(2)}`;
    });
  const back = [...points].reverse();
  const under = back.map((point, i) => {
    const next = back[i + 1];
    return `V${y(low(next ?? point)).toFixed(2)}${next ? `H${at(next[0]).toFixed(2)}` : ""}`;
  });
  return `M${at(points[0][0]).toFixed(2)},${y(low(points[0])).toFixed(2)}${line(high).join("")}${under.join("")}z`;
}

// The memory of a stage as wide as its place.
export function memoryOf(answer, wide, number) {
  const p = palette();
  const { timeline, memory } = answer;
  const own = answer.stages[number];
  const stage = timeline.stages.find((one) => one.stage === number);
  const { left, right } = { left: Math.max(58, margins(wide).left), right: margins(wide).right };
  const time = scale(timeline, left, wide - right);
  const most = Math.max(own.total_bytes, memory.usable_bytes) * 1.06;
  const y = (value) => 6 + HIGH * (1 - value / most);
  const points = steps(own, stage, timeline.step_seconds);
  const fixed = own.total_bytes - own.activation_bytes - own.working_bytes;
  let floor = 0;
  const bands = PARTS.slice(0, 5).map(([key, , color]) => {
    const value = own[`${key}_bytes`];
    floor += value;
    const box = { x: left, y: y(floor), width: wide - right - left, height: y(floor - value) - y(floor) };
    return value > 0 && s("rect", { ...box, fill: p[color] });
  });
  const over = own.total_bytes > memory.usable_bytes;
  const line = y(memory.usable_bytes);
  const named = PARTS.filter(([key]) => own[`${key}_bytes`] > 0).map(([key, word, color]) => [
    p[color],
    `${word} ${bytes(own[`${key}_bytes`])}`,
  ]);
  const bottom = 6 + HIGH;
  const key = legend(named, left, bottom + AXIS + 18, wide - left);
  const power = 10 ** Math.floor(Math.log10(most / 4));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= most / 5);
  const marks = Array.from({ length: Math.floor(most / step) + 1 }, (_, k) => k * step);
  const small = { "font-size": 11, fill: p.muted };
  const svg = s(
    "svg",
    { width: wide, height: bottom + AXIS + 10 + key.high, viewBox: `0 0 ${wide} ${bottom + AXIS + 10 + key.high}` },
    marks.map((value) => [
      s("path", { d: `M${left},${y(value)}H${wide - right}`, stroke: p.grid }),
      s("text", { ...small, x: left - 6, y: y(value) + 4, "text-anchor": "end" }, round(value)),
    ]),
    bands,
    s("path", { d: area(points, time.at, y, () => fixed, (point) => fixed + point[1]), fill: p.orange }),
    s("path", {
      d: area(points, time.at, y, (point) => fixed + point[1], (point) => fixed + point[1] + point[2]),
      fill: p.purple,
    }),
    [p.paper, over ? p.alert : p.ink].map((stroke, k) =>
      s("path", { d: `M${left},${line}H${wide - right}`, stroke, "stroke-width": k ? 1.6 : 4 }),
    ),
    s(
      "text",
      { ...small, ...HALO, stroke: p.paper, x: wide - right - 4, y: line - 5, fill: over ? p.alert : p.ink },
      `usable ${bytes(memory.usable_bytes)}`,
    ),
    timeAxis(time, timeline, 0, bottom),
    key.nodes,
  );
  return svg;
}

const round = (value) => (value ? brief(bytes(value)) : "0");

export function stageTable({ stages, memory, recipe, step_seconds: step }) {
  const kept = recipe.interleave > 1 ? "passes kept" : "micro-batches kept";
  const held = ["weights", "gradients", "optimizer", "activation", "working", "total"];
  const heads = ["stage", "layers", ...held.map((key) => (key === "activation" ? "activations" : key)), kept, "idle"];
  return table(
    "Every stage at its peak",
    heads,
    stages.map((one) => ({
      best: one.stage === memory.stage,
      cells: [
        one.stage,
        one.layers,
        ...held.map((key) => bytes(one[`${key}_bytes`])),
        digits(one.in_flight.reduce((sum, n) => sum + n, 0)),
        percent(one.idle_seconds / step),
      ],
    })),
  );
}

const MOST = 24; // operators of the table

// Operators by phase and name, slowest first; all layers and micro-batches together.
export function operatorTable({ phases }) {
  const rows = new Map();
  for (const [phase, { ops }] of Object.entries(phases))
    for (const op of ops) {
      const key = `${phase} ${op.name}`;
      const row = rows.get(key) ?? { phase, name: op.name, seconds: 0, roofline: 0, count: 0, bound: op.bound };
      row.seconds += op.seconds;
      row.roofline += op.roofline_seconds;
      row.count += op.count;
      rows.set(key, row);
    }
  const all = [...rows.values()].filter((row) => row.seconds > 0).sort((a, b) => b.seconds - a.seconds);
  const sum = all.reduce((whole, row) => whole + row.seconds, 0);
  const more = all.length > MOST ? ` (the largest ${MOST} of ${all.length})` : "";
  return table(
    `Operators of the slowest stage${more}`,
    ["operator", "pass", "calls", "time", "share", "bound by", "efficiency"],
    all.slice(0, MOST).map((row) => ({
      cells: [
        row.name,
        spaced(row.phase),
        digits(row.count),
        seconds(row.seconds),
        percent(row.seconds / sum),
        row.bound,
        percent(row.roofline / row.seconds),
      ],
    })),
  );
}
