// Requests as bars over time on a canvas: queued, prefill, decode. As many rows as there is room for; the rest is said.
import { h, show } from "./dom.js";
import { table } from "./form.js";
import { digits, milliseconds, seconds } from "./format.js";
import { belongs, missed } from "./moment.js";
import { palette } from "./theme.js";

const HEIGHT = 300;
const AXIS = 22; // below the rows
const ROW = { most: 14, least: 2 };
const TABLE = 200; // rows of the table behind it

export const LEGEND = [
  ["queued", "orange"],
  ["prefill", "sky"],
  ["transfer", "purple"],
  ["decode", "blue"],
];

// The parts of a request's life: [phase's colour, start, stop]
export function segments(data, i, role = null) {
  const r = data.requests;
  const starts = [r.arrival_s[i], r.scheduled_s[i], r.prefilled_s[i], r.decode_s[i], r.finished_s[i]];
  if (data.rejected.has(i)) return [];
  const parts = LEGEND.map(([, color], k) => [color, starts[k], starts[k + 1]]);
  const shown = role === "prefill" ? parts.slice(0, 2) : role === "decode" ? parts.slice(2) : parts;
  const pauses = (data.pauses.get(i) ?? []).map(([start, stop]) => ["orange", start, stop]);
  return [...shown, ...pauses].filter(([, start, stop]) => stop > start && start < Infinity);
}

// Requests that are in the system in a span of time, in order of arrival
function inside(data, replica, [from, to]) {
  const r = data.requests;
  return data.order.filter(
    (i) => r.arrival_s[i] <= to && !(r.finished_s[i] < from) && !data.rejected.has(i) && belongs(data, i, replica),
  );
}

// Round ticks of a span: ticks([0, 60], 6) -> [0, 10, …]
function ticks([from, to], count) {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(to / step + 1e-9) - first + 1) }, (_, k) => (first + k) * step);
}

function drawAxis(pen, wide, span, p) {
  const [from, to] = span;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  for (const tick of ticks(span, Math.max(2, Math.floor(wide / 110)))) {
    const x = Math.round(((tick - from) / (to - from)) * wide) + 0.5;
    pen.fillStyle = p.grid;
    pen.fillRect(x - 0.5, 0, 1, HEIGHT - AXIS);
    pen.fillStyle = p.muted;
    const text = `${Number(tick.toPrecision(6))} s`;
    pen.textAlign = x < 20 ? "left" : x > wide - 24 ? "right" : "center";
    pen.fillText(text, x, HEIGHT - AXIS + 6);
  }
}

function drawRow(pen, data, i, y, high, at, { role, dots, p }) {
  for (const [color, start, stop] of segments(data, i, role)) {
    const [a, b] = [at(start), at(Math.min(stop, data.end_s))];
    pen.fillStyle = p[color];
    pen.fillRect(a, y, Math.max(b - a, 0.75), high);
  }
  const r = data.requests;
  if (high >= 4 && role !== "prefill") {
    pen.fillStyle = p.ink;
    pen.fillRect(at(r.first_token_s[i]) - 0.75, y - 1, 1.5, high + 2);
  }
  if (missed(data, i, String).length) {
    const x = at(Math.min(r.finished_s[i], data.end_s)) + 2;
    pen.fillStyle = p.vermillion;
    pen.beginPath();
    if (dots) pen.arc(x + 3, y + high / 2, 3, 0, 7);
    else pen.rect(x, y, 3, high);
    pen.fill();
  }
}

// gantt(onseek) -> { element, draw(data, replica, span), cursor(now) }; a click moves to that time
export function gantt(onseek) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const line = h("i", { class: "cursor", hidden: true });
  const box = h("div", { class: "gantt", style: `height:${HEIGHT}px` }, canvas, line);
  const caption = h("p", { class: "note" });
  const rows = h("div", {});
  const behind = h("details", { class: "inner" }, h("summary", {}, "These requests as a table"), rows);
  let drawn = null; // { data, replica, span, requests, high, every }
  const at = (time) => ((time - drawn.span[0]) / (drawn.span[1] - drawn.span[0])) * canvas.clientWidth;
  const under = (event) => {
    const place = canvas.getBoundingClientRect();
    const now = drawn.span[0] + ((event.clientX - place.left) / place.width) * (drawn.span[1] - drawn.span[0]);
    const row = Math.floor((event.clientY - place.top) / drawn.high);
    return { now, request: drawn.requests[row] };
  };
  box.addEventListener("click", (event) => drawn && onseek(under(event).now));
  box.addEventListener("mousemove", (event) => {
    const { request } = drawn ? under(event) : {};
    caption.textContent = request === undefined ? drawn?.note : describe(drawn.data, request);
  });
  box.addEventListener("mouseleave", () => (caption.textContent = drawn?.note ?? ""));
  behind.addEventListener("toggle", () => drawn && fillTable());
  new ResizeObserver(() => drawn && canvas.clientWidth && paint()).observe(box);

  function paint() {
    const [wide, ratio] = [box.clientWidth, window.devicePixelRatio || 1];
    Object.assign(canvas, { width: wide * ratio, height: HEIGHT * ratio });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const p = palette();
    drawAxis(pen, wide, drawn.span, p);
    const { data, replica, high } = drawn;
    const role = replica === null ? null : data.replicas[replica].role;
    const look = { role, dots: high >= 6, p };
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, wide, HEIGHT - AXIS);
    pen.clip();
    const gap = high >= 5 ? 2 : high >= 3 ? 1 : 0;
    drawn.requests.forEach((i, row) => {
      const [top, bottom] = [Math.round(row * high), Math.round((row + 1) * high)]; // whole pixels: no stripes
      drawRow(pen, data, i, top, bottom - top - gap, at, look);
    });
    pen.restore();
  }

  function fillTable() {
    if (behind.open) show(rows, requestTable(drawn.data, drawn.all.slice(0, TABLE), drawn.all.length));
  }

  return {
    element: h("div", {}, box, caption, behind),
    draw(data, replica, span) {
      const all = inside(data, replica, span);
      const room = HEIGHT - AXIS;
      const every = Math.max(1, Math.ceil((all.length * ROW.least) / room));
      const requests = all.filter((_, k) => k % every === 0);
      const high = Math.min(ROW.most, room / Math.max(requests.length, 1));
      const part = every > 1 ? `one in ${every} of ` : "";
      const note = `${part}${digits(all.length, 7)} requests in order of arrival, one per row; click to jump to a time`;
      drawn = { data, replica, span, all, requests, high, note };
      caption.textContent = note;
      if (box.clientWidth) paint();
      fillTable();
    },
    cursor(now) {
      const share = drawn ? (now - drawn.span[0]) / (drawn.span[1] - drawn.span[0]) : -1;
      line.hidden = !(share >= 0 && share <= 1);
      line.style.left = `${share * 100}%`;
    },
  };
}

function describe(data, i) {
  const r = data.requests;
  const bad = missed(data, i, milliseconds);
  const spans = [
    ["queued", r.scheduled_s[i] - r.arrival_s[i]],
    ["prefill", r.prefilled_s[i] - r.scheduled_s[i]],
    ["transfer", r.decode_s[i] - r.prefilled_s[i]],
    ["decode", r.finished_s[i] - r.decode_s[i]],
  ];
  return [
    `Request ${digits(r.index[i], 7)}: ${digits(r.input_tokens[i], 7)} + ${digits(r.output_tokens[i], 7)} tokens`,
    ...spans.filter(([, s]) => s > 0 && s < Infinity).map(([word, s]) => `${word} ${seconds(s)}`),
    r.preemptions[i] ? `${r.preemptions[i]} × preempted` : "",
    ...bad,
  ]
    .filter(Boolean)
    .join(" · ");
}

function requestTable(data, places, total) {
  const r = data.requests;
  const heads = ["request", "arrives", "queued", "TTFT", "end to end", "input", "output", "goals"];
  const cells = (i) => [
    digits(r.index[i], 7),
    `${r.arrival_s[i].toFixed(3)} s`,
    seconds(r.scheduled_s[i] - r.arrival_s[i]),
    seconds(r.first_token_s[i] - r.arrival_s[i]),
    seconds(r.finished_s[i] - r.arrival_s[i]),
    digits(r.input_tokens[i], 7),
    digits(r.output_tokens[i], 7),
    missed(data, i, milliseconds).join(", ") || "kept",
  ];
  const caption = total > places.length ? `The first ${places.length} of ${digits(total, 7)} requests` : "Requests";
  return table(
    caption,
    heads,
    places.map((i) => ({ cells: cells(i) })),
  );
}
