// A training step as an SVG: a row per pipeline stage, forward and backward passes, what waits for communication, and
// the bubble between them. Time has a gap where a long schedule repeats itself.
import { h, s } from "./dom.js";
import { bytes, digits, percent, seconds } from "./format.js";
import { palette, tint } from "./theme.js";

const GAP = 0.05; // of the width: what stands for the fold
const AXIS = 24;
const COMM = [
  ["tp_comm", "tensor-parallel"],
  ["cp_comm", "context-parallel"],
  ["ep_comm", "expert all-to-all"],
  ["pp_comm", "sends"],
  ["dp_comm", "data-parallel"],
];

// Without digits that say nothing: brief("2.50 s") "2.5 s"
export const brief = (text) => text.replace(/^[\d.]+/, (number) => String(Number(number)));
export const communication = (parts) => COMM.reduce((sum, [name]) => sum + parts[name], 0);
export const total = (parts) => Object.values(parts).reduce((sum, value) => sum + value, 0);

// Pixels of a time: scale(timeline, left, right) -> { at, span, back, gap, ticks }
export function scale({ step_seconds: end, fold }, left, right) {
  const left_out = fold ? fold.to_s - fold.from_s : 0;
  const gap = fold ? (end - left_out) * GAP : 0;
  const place = (t) => (!fold || t <= fold.from_s ? t : Math.max(t, fold.to_s) - left_out + gap);
  const unit = (right - left) / place(end);
  const at = (t) => left + place(t) * unit;
  const span = (from, to) => {
    if (!fold) return [at(from), at(to)];
    return from < fold.from_s
      ? [at(from), left + Math.min(to, fold.from_s) * unit]
      : [at(Math.max(from, fold.to_s)), at(to)];
  };
  const back = (x) => {
    const t = (x - left) / unit;
    return !fold || t <= fold.from_s ? t : t < fold.from_s + gap ? null : t - gap + left_out;
  };
  return { at, span, back, right, ticks: ticks(end - left_out, end, fold, right - left), edges: fold && edges() };
  function edges() {
    const x = left + fold.from_s * unit;
    return [x, x + gap * unit];
  }
}

function ticks(shown, end, fold, wide) {
  const rough = (shown / Math.max(2, wide / 110)) * 1.0;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const all = Array.from({ length: Math.floor(end / step) + 1 }, (_, k) => k * step);
  const margin = fold ? (shown / wide) * 70 : 0; // room for what the gap leaves out
  return all.filter((t) => !fold || t < fold.from_s - margin || t > fold.to_s + margin);
}

// The axis below a drawing, and the gap with what it leaves out.
export function timeAxis(time, { fold }, top, bottom) {
  const p = palette();
  const label = (x, y, text, more) => s("text", { x, y, "font-size": 11, fill: p.muted, ...more }, text);
  const marks = time.ticks.map((t, k) => [
    s("path", { d: `M${time.at(t)},${bottom}v4`, stroke: p.muted }),
    label(time.at(t), bottom + 16, t ? brief(seconds(t)) : "0", {
      "text-anchor": !k ? "start" : time.at(t) > time.right - 12 ? "end" : "middle",
    }),
  ]);
  if (!fold) return marks;
  const [x0, x1] = time.edges;
  const middle = (x0 + x1) / 2;
  const text = `${digits(fold.micro_batches)} more, ${seconds(fold.to_s - fold.from_s)}`;
  return [
    s("rect", { x: x0, y: top, width: x1 - x0, height: bottom - top, fill: p.paper }),
    [x0, x1].map((x) =>
      s("path", { d: `M${x},${top}V${bottom}`, stroke: p.muted, "stroke-width": 1, "stroke-dasharray": "2 2" }),
    ),
    label(middle, bottom + 16, text, { "text-anchor": "middle", fill: p.ink }),
    marks,
  ];
}

// Patches of colour with their names, as many lines as they need: legend(entries, x, y, width) -> { nodes, high }
export function legend(entries, x, y, width) {
  const p = palette();
  let [at, line] = [x, y];
  const nodes = entries.flatMap(([color, text]) => {
    const wide = 18 + text.length * 6.1 + 12;
    if (at > x && at + wide > x + width) [at, line] = [x, line + 18];
    const here = at;
    at += wide;
    return [
      s("rect", { x: here, y: line - 9, width: 11, height: 11, rx: 2, fill: color }),
      s("text", { x: here + 16, y: line + 1, "font-size": 11.5, fill: p.muted }, text),
    ];
  });
  return { nodes, high: line - y + 18 };
}

// What a pass consists of, from above: [colour, share]
function shares(parts, color) {
  const p = palette();
  const all = total(parts);
  return [
    [color, parts.compute],
    [p.orange, parts.recompute],
    [p.vermillion, communication(parts)],
    [p.muted, parts.host],
  ]
    .filter(([, took]) => took > 0)
    .map(([own, took]) => [own, took / all]);
}

// One path for all passes of a stage and a kind; those too thin to be told apart touch.
function bars(spans, y, high) {
  const end = ([a, b]) => b - (b - a > 5 ? 0.8 : 0);
  return spans.map((span) => `M${span[0].toFixed(2)},${y}H${end(span).toFixed(2)}v${high}H${span[0].toFixed(2)}z`);
}

function rowOf(stage, timeline, time, y, high) {
  const p = palette();
  const v = timeline.virtual_stages;
  const q = stage.passes;
  const nodes = [];
  const numbers = [];
  for (let chunk = 0; chunk < v; chunk++)
    for (const backward of [false, true]) {
      const parts = (backward ? stage.backward : stage.forward)[chunk];
      const color = tint(backward ? p.green : p.blue, 1 - (0.6 * chunk) / Math.max(v - 1, 1));
      const own = q.chunk.map((c, i) => i).filter((i) => q.chunk[i] === chunk && q.backward[i] === backward);
      const spans = own.map((i) => time.span(q.start_s[i], q.end_s[i]));
      let top = y;
      for (const [fill, share] of shares(parts, color)) {
        nodes.push(s("path", { d: bars(spans, top, high * share).join(""), fill }));
        top += high * share;
      }
      if (high < 15) continue;
      const middle = y + (high * parts.compute) / total(parts) / 2 + 3.5;
      own.forEach((i, k) => {
        const text = String(q.microbatch[i]);
        if (spans[k][1] - spans[k][0] > 6.2 * text.length + 5)
          numbers.push([(spans[k][0] + spans[k][1]) / 2, middle, text, chunk < v / 2 ? p.paper : p.ink]);
      });
    }
  const small = { "font-size": 10, "text-anchor": "middle" };
  return [nodes, numbers.map(([x, at, text, fill]) => s("text", { ...small, x, y: at, fill }, text))];
}

// After the passes: gradients, the optimizer, weights.
function endOf(stage, timeline, time, y, high) {
  const p = palette();
  let at = timeline.passes_end_s;
  return [
    [stage.reduce_gradients_s, p.vermillion],
    [stage.optimizer_s, p.purple],
    [stage.gather_weights_s, p.vermillion],
  ].map(([took, fill]) => {
    const [x0, x1] = [time.at(at), time.at(at + took)];
    at += took;
    return took > 0 && s("rect", { x: x0, y, width: Math.max(x1 - x0, 0.5), height: high, fill });
  });
}

export const margins = (wide) => (wide < 560 ? { left: 26, right: 6 } : { left: 58, right: 74 });
const rowHeight = (rows) => (rows <= 8 ? 34 : rows <= 20 ? 22 : Math.max(5, 440 / rows));

function entries(timeline) {
  const p = palette();
  const every = timeline.stages.flatMap((stage) => [...stage.forward, ...stage.backward]);
  const ends = timeline.stages.some((stage) => stage.reduce_gradients_s + stage.gather_weights_s > 0);
  const shades = timeline.virtual_stages > 1 ? " (virtual stages: strong to faint)" : "";
  return [
    [p.blue, "forward"],
    [p.green, `backward${shades}`],
    every.some((parts) => parts.recompute > 0) && [p.orange, "recomputation"],
    (ends || every.some((parts) => communication(parts) > 0)) && [p.vermillion, "communication that is not hidden"],
    every.some((parts) => parts.host > 0) && [p.muted, "waiting for the host"],
    [p.purple, "optimizer"],
    timeline.stages.length > 1 && [p.grid, "idle"],
  ].filter(Boolean);
}

// The schedule of an answer as wide as its place: { svg, under(event) }; under says which pass is under the pointer
export function scheduleOf(answer, wide) {
  const p = palette();
  const { timeline } = answer;
  const { left, right } = margins(wide);
  const rows = timeline.stages;
  const [each, gap] = [rowHeight(rows.length), rows.length <= 20 ? 4 : 1];
  const time = scale(timeline, left, wide - right);
  const bottom = 4 + rows.length * each;
  const key = legend(entries(timeline), left, bottom + AXIS + 18, wide - left);
  const every = Math.ceil(13 / each);
  const labelled = rows.length > 1 && right > 40;
  const svg = s(
    "svg",
    { width: wide, height: bottom + AXIS + 10 + key.high, viewBox: `0 0 ${wide} ${bottom + AXIS + 10 + key.high}` },
    rows.map((stage, k) => {
      const y = 4 + k * each;
      const high = each - gap;
      const end = time.at(timeline.passes_end_s);
      const own = answer.stages[stage.stage];
      const middle = y + high / 2 + 4;
      const word = { y: middle, "font-size": 11 };
      const name = left < 40 ? String(stage.stage) : `stage ${stage.stage}`;
      const idle = `${percent(own.idle_seconds / timeline.step_seconds)} idle`;
      return [
        s("rect", { x: left, y, width: end - left, height: high, fill: p.grid }),
        rowOf(stage, timeline, time, y, high),
        endOf(stage, timeline, time, y, high),
        k % every === 0 && s("text", { ...word, x: left - 6, fill: p.ink, "text-anchor": "end" }, name),
        k % every === 0 && labelled && s("text", { ...word, x: wide - right + 8, fill: p.muted }, idle),
      ];
    }),
    timeAxis(time, timeline, 0, bottom),
    key.nodes,
  );
  return {
    svg,
    under(event) {
      const box = svg.getBoundingClientRect();
      const stage = rows[Math.floor((event.clientY - box.top - 4) / each)];
      const now = time.back(event.clientX - box.left);
      if (!stage || now === null) return null;
      const i = stage.passes.start_s.findIndex((start, k) => start <= now && now < stage.passes.end_s[k]);
      return { stage, text: i < 0 ? `stage ${stage.stage} waits` : describe(stage, i, timeline) };
    },
  };
}

function describe(stage, i, timeline) {
  const q = stage.passes;
  const [chunk, backward] = [q.chunk[i], q.backward[i]];
  const parts = (backward ? stage.backward : stage.forward)[chunk];
  const waits = COMM.filter(([name]) => parts[name] > 0).map(([name, word]) => `${word} ${seconds(parts[name])}`);
  return [
    `stage ${stage.stage}${timeline.virtual_stages > 1 ? `, virtual stage ${chunk}` : ""}: ` +
      `${backward ? "backward" : "forward"} of micro-batch ${q.microbatch[i]}, ${seconds(total(parts))}`,
    `computes ${seconds(parts.compute)}`,
    parts.recompute > 0 && `recomputes ${seconds(parts.recompute)}`,
    waits.length && `waits for communication: ${waits.join(", ")}`,
    parts.host > 0 && `waits for the host ${seconds(parts.host)}`,
    `${bytes(q.memory_bytes[i])} on the GPU`,
  ]
    .filter(Boolean)
    .join(" · ");
}

export const passRows = ({ timeline }) =>
  timeline.stages.flatMap(({ stage, passes: q }) =>
    q.start_s.map((start, i) => ({
      stage,
      virtual_stage: q.chunk[i],
      microbatch: q.microbatch[i],
      pass: q.backward[i] ? "backward" : "forward",
      start_s: start,
      end_s: q.end_s[i],
      memory_bytes: q.memory_bytes[i],
    })),
  );

// The line below a schedule that says what is under the pointer.
export function pointed(box, onpick) {
  const line = h("p", { class: "note pointed" });
  let drawn = null;
  const standing = () => "point at a pass to see what it consists of; click a stage for its memory";
  box.addEventListener("pointermove", (event) => (line.textContent = drawn?.under(event)?.text ?? standing()));
  box.addEventListener("pointerleave", () => (line.textContent = standing()));
  box.addEventListener("click", (event) => {
    const stage = drawn?.under(event)?.stage;
    if (stage) onpick(stage.stage);
  });
  return {
    line,
    of(schedule) {
      drawn = schedule;
      line.textContent = standing();
    },
  };
}
