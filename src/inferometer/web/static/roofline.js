// Tab: every operator under the roofs, log-log, and below it all of the time. The server has placed the names.
import { decades, drawing } from "./chart.js";
import { h, s, show } from "./dom.js";
import { capital, digits, percent, seconds, si } from "./format.js";
import { phaseWord } from "./kind.js";
import { keyOf } from "./phases.js";
import { emit, setView, state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

const [LEFT, RIGHT, TOP, FOOT] = [58, 8, 10, 40];
const WIDEST = 660; // pixels: in a field much larger than theirs, names would stand far from their dots
const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const LEADER = 9; // pixels between a dot's rim and its name, from which on a line leads there

const pen = document.createElement("canvas").getContext("2d");
const wideness = (text) => ((pen.font = `11px ${FONT}`), pen.measureText(text).width);
const label = (x, y, content, extra = {}) =>
  s("text", { x, y, "font-size": 11, fill: palette().ink, "dominant-baseline": "central", ...extra }, content);
const path = (points, extra) =>
  s("path", { d: `M${points.map((p) => p.join(",")).join("L")}`, fill: "none", ...extra });
const rate = (op) => op.flops / op.seconds;

// The field of a chart that is so wide: its size, where values lie, and the places of names that fit in it.
function fieldOf(chart, fields, across) {
  const width = across - LEFT - RIGHT;
  const height = width < 350 ? 300 : width < 440 ? 340 : Math.min(460, Math.max(380, width * 0.7));
  const part = (v, [low, high]) => Math.log(v / low) / Math.log(high / low);
  return {
    width,
    height,
    x: (v) => LEFT + part(v, chart.x) * width,
    y: (v) => TOP + (1 - part(v, chart.y)) * height,
    bottom: TOP + height,
    right: LEFT + width,
    places: fields.filter((f) => f.width <= width && f.height <= height).at(-1) ?? fields[0],
  };
}

function axes(chart, field) {
  const p = palette();
  const [across, upward] = [decades(...chart.x, (v) => digits(v)), decades(...chart.y, (v) => si(v, "", digits))];
  const faint = { stroke: p.grid };
  return [
    across.tickvals.map((v, i) => [
      path(
        [
          [field.x(v), TOP],
          [field.x(v), field.bottom],
        ],
        faint,
      ),
      label(field.x(v), field.bottom + 12, across.ticktext[i], { "text-anchor": "middle", fill: p.muted }),
    ]),
    upward.tickvals.map((v, i) => [
      path(
        [
          [LEFT, field.y(v)],
          [field.right, field.y(v)],
        ],
        faint,
      ),
      label(LEFT - 6, field.y(v), upward.ticktext[i], { "text-anchor": "end", fill: p.muted }),
    ]),
    path(
      [
        [LEFT, TOP],
        [LEFT, field.bottom],
        [field.right, field.bottom],
      ],
      { stroke: p.faint },
    ),
    label(LEFT + field.width / 2, field.bottom + 29, "arithmetic intensity (FLOP/byte)", {
      "text-anchor": "middle",
      fill: p.muted,
    }),
    label(0, 0, "achieved FLOP/s", {
      transform: `translate(9,${TOP + field.height / 2}) rotate(-90)`,
      "text-anchor": "middle",
      fill: p.muted,
    }),
  ];
}

function roofs(chart, field) {
  const p = palette();
  const { bandwidth, reached } = chart;
  const peak = chart.roofs[0].flops;
  const start = Math.max(chart.x[0], chart.y[0] / bandwidth);
  const solid = { stroke: p.ink, "stroke-width": 1.5 };
  const slope = [
    [field.x(start), field.y(start * bandwidth)],
    [field.x(peak / bandwidth), field.y(peak)],
  ];
  const turn = (Math.atan2(slope[1][1] - slope[0][1], slope[1][0] - slope[0][0]) * 180) / Math.PI;
  const [ax, ay] = slope[0].map((v, i) => v + (slope[1][i] - v) * field.places.memory);
  return [
    dashes(chart, field, reached.bandwidth?.rate ?? bandwidth, reached.flops?.rate ?? peak),
    path(slope, solid),
    label(0, -9, `memory ${si(bandwidth, "B/s")}`, { transform: `translate(${ax},${ay}) rotate(${turn})` }),
    chart.roofs.map((roof, i) => [
      path(
        [
          [field.x(roof.flops / bandwidth), field.y(roof.flops)],
          [field.right, field.y(roof.flops)],
        ],
        solid,
      ),
      label(
        field.right - 4,
        field.y(roof.flops) - field.places.roofs[i].side,
        `${roof.name} ${si(roof.flops, "FLOP/s")}`,
        {
          "text-anchor": "end",
        },
      ),
    ]),
  ];
}

// The best that measured kernels of this plan reach.
function dashes(chart, field, band, top) {
  const { reached } = chart;
  const thin = { stroke: palette().muted, "stroke-dasharray": "6 4", "stroke-width": 1.1 };
  const start = Math.max(chart.x[0], chart.y[0] / band);
  const end = LEFT + field.places.dashes * field.width;
  const knee = [field.x(top / band), field.y(top)];
  return [
    reached.bandwidth && path([[field.x(start), field.y(start * band)], knee], thin),
    reached.flops && knee[0] < end && path([knee, [end, knee[1]]], thin),
  ];
}

function described(op, phase) {
  return [
    h("b", {}, op.name),
    h("span", {}, `${percent(op.share)} of ${phase}, ${seconds(op.seconds)}, ${boundWords(op.bound)}`),
    h("span", {}, `${digits(op.intensity)} FLOP/byte, ${si(rate(op), "FLOP/s")}`),
    h("span", {}, `${percent(op.efficiency)} of its roofline, ${op.origin}`),
  ];
}

// A dot and its name: one thing to point at, and to reach with the keyboard where it has a name.
function mark(op, radius, name, field, { phase, key, card }) {
  const p = palette();
  const [x, y] = [field.x(op.intensity), field.y(rate(op))];
  const open = () => setView({ tab: null, phase, op: key });
  const parts = [
    s("circle", { cx: x, cy: y, r: radius, fill: boundColor(op.bound), "fill-opacity": 0.78, stroke: p.paper }),
  ];
  if (name) {
    const [nx, ny] = [LEFT + name.x * field.width, TOP + (1 - name.y) * field.height];
    const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
    const end = [clamp(x, nx - name.width / 2, nx + name.width / 2), clamp(y, ny - 7, ny + 7)];
    if (Math.hypot(end[0] - x, end[1] - y) >= radius + LEADER)
      parts.push(path([[x, y], end], { stroke: p.muted, "stroke-width": 0.8 }));
    parts.push(
      label(nx, ny, name.text, {
        "text-anchor": "middle",
        stroke: p.paper, // over the rings of a pinned plan, which was not there when names were placed
        "stroke-width": 3,
        "stroke-linejoin": "round",
        "paint-order": "stroke",
      }),
    );
  }
  return s(
    "g",
    {
      class: "dot",
      role: "button",
      tabindex: name ? "0" : null,
      "aria-label": `${name?.text ?? op.name}, ${boundWords(op.bound)}, ${digits(op.intensity)} FLOP per byte`,
      "data-op": op.name,
      "data-key": key,
      onclick: open,
      onkeydown: (event) => [" ", "Enter"].includes(event.key) && (event.preventDefault(), open()),
      onpointerenter: () => card.show(x, y + radius, described(op, phase)),
      onpointerleave: card.hide,
      onfocus: () => card.show(x, y + radius, described(op, phase)),
      onblur: card.hide,
    },
    parts,
  );
}

const ring = (op, radius, field) =>
  s("circle", {
    cx: field.x(op.intensity),
    cy: field.y(rate(op)),
    r: radius,
    fill: "none",
    stroke: boundColor(op.bound),
    "stroke-width": 1.5,
    "clip-path": "url(#roofline-field)",
  });

// All of the time as one bar: what has dots, then what has no arithmetic; and what its parts are called.
function strip({ time, legend }, field, card) {
  const p = palette();
  const top = field.bottom + FOOT + 4;
  const gap = time.some((part) => part.dots) && time.some((part) => !part.dots) ? 6 : 0;
  let x = LEFT;
  const bars = time.map((part, i) => {
    if (i && !part.dots && time[i - 1].dots) x += gap;
    const wide = part.share * (field.width - gap);
    const content = [h("b", {}, part.name), h("span", {}, `${percent(part.share)}, ${seconds(part.seconds)}`)];
    const [left, middle] = [x, x + wide / 2];
    x += wide;
    return s("rect", {
      x: left,
      y: top,
      width: Math.max(0.5, wide - 1),
      height: 14,
      fill: boundColor(part.bound),
      "fill-opacity": part.dots ? 0.78 : 1,
      onpointerenter: () => card.show(middle, top + 14, content),
      onpointerleave: card.hide,
    });
  });
  let [left, low] = [LEFT, top + 28];
  const room = ([text, bound]) => wideness(text) + (bound ? 25 : 7);
  const entries = legend.map(([text, bound], i) => {
    const wide = room([text, bound]);
    const needed = bound ? wide : wide + room(legend[i + 1]); // what they are, and the first of them
    if (left + needed > field.right + 14 && left > LEFT) [left, low] = [LEFT, low + 17];
    const [from, y] = [left, low];
    left += wide;
    return [
      bound && s("rect", { x: from, y: y - 5, width: 10, height: 10, rx: 2, fill: boundColor(bound) }),
      label(from + (bound ? 14 : 0), y, text, { fill: p.muted }),
    ];
  });
  return { height: low + 12, parts: [bars, entries] };
}

// What is under the pointer, beside it.
function hoverCard(figure) {
  const element = h("div", { class: "hover-card", hidden: true });
  figure.append(element);
  return {
    show(x, y, content) {
      show(element, content);
      element.hidden = false;
      const box = figure.querySelector(".drawing");
      const from = box.querySelector("svg").getBoundingClientRect().left - figure.getBoundingClientRect().left;
      const left = Math.max(4, Math.min(from + x + 8, box.clientWidth - element.offsetWidth - 4));
      element.style.left = `${left}px`;
      element.style.top = `${box.offsetTop + y + 8}px`;
    },
    hide: () => (element.hidden = true),
  };
}

function picture(report, name, across, card) {
  const [chart, { ops }] = [report.roofline_chart, report.phases[name]];
  const drawn = chart.phases[name];
  const field = fieldOf(chart, drawn.fields, across);
  const names = new Map(field.places.names.map((one) => [one.op, one]));
  const dots = [...drawn.dots].sort((a, b) => b.radius - a.radius);
  const old = (state.before?.phases[name]?.ops ?? []).filter((op) => op.flops > 0 && op.bytes > 0 && op.seconds > 0);
  const all = strip(drawn, field, card);
  return s(
    "svg",
    {
      width: across,
      height: all.height,
      viewBox: `0 0 ${across} ${all.height}`,
      "font-family": FONT,
      role: "group",
      "aria-label": `Roofline of ${name}`,
    },
    s("clipPath", { id: "roofline-field" }, s("rect", { x: LEFT, y: TOP, width: field.width, height: field.height })),
    axes(chart, field),
    roofs(chart, field),
    old.map((op) => ring(op, Math.sqrt(8.6 + 553 * op.share), field)),
    dots.map(({ op: i, radius }) =>
      mark(ops[i], radius, names.get(i), field, { phase: name, key: keyOf(ops[i], ops), card }),
    ),
    all.parts,
  );
}

// What the picture says, in words and figures.
function sentence(report, name) {
  const { reached, bandwidth, roofs: tops, phases } = report.roofline_chart;
  const ops = phases[name].dots.map((dot) => report.phases[name].ops[dot.op]);
  const largest = ops.reduce((most, op) => (op.share > (most?.share ?? 0) ? op : most), null);
  const roof = (op) => Math.min(tops[0].flops, op.intensity * bandwidth);
  const best = [
    reached.bandwidth && si(reached.bandwidth.rate, "B/s"),
    reached.flops && si(reached.flops.rate, "FLOP/s"),
  ].filter(Boolean);
  return [
    largest &&
      `${largest.name} is the largest: ${percent(largest.share)}, at ${si(rate(largest), "FLOP/s")}, ` +
        `${percent(rate(largest) / roof(largest), 0)} of the roof above it`,
    "area: time",
    best.length && `dashed: best of measured kernels, ${best.join(" and ")}`,
    state.before && "rings: pinned",
  ]
    .filter(Boolean)
    .join(" · ");
}

const rowsOf = (report, name) =>
  report.phases[name].ops
    .filter((op) => op.seconds > 0)
    .map((op) => ({
      phase: name,
      operator: op.name,
      block: op.block,
      intensity: op.flops > 0 && op.bytes > 0 ? op.intensity : null,
      flops_per_second: op.flops > 0 ? rate(op) : null,
      seconds: op.seconds,
      share: op.share,
      bound: op.bound,
      efficiency: op.efficiency,
      origin: op.origin,
    }));

export const rooflineView = {
  id: "roofline",
  label: "Roofline",
  path: "/api/roofline", // what the page asks for while this tab is open: the report with the roofline laid out
  mount(host) {
    const place = h("div", { class: "two" });
    host.append(place);
    const charts = new Map(); // phase -> { frame, card }
    let requested = null;
    const framed = (name) => {
      if (!charts.has(name)) {
        const frame = drawing(place, { name: `roofline-${name}`, title: "", rows: () => rowsOf(state.report, name) });
        charts.set(name, { frame, card: hoverCard(frame.box.parentNode) });
      }
      return charts.get(name);
    };
    function draw() {
      const { report } = state;
      if (!report.roofline_chart) {
        if (requested !== report) emit("plan", { recalled: true });
        requested = report;
        return;
      }
      const phases = Object.keys(report.phases);
      for (const [name, { frame }] of charts)
        if (!phases.includes(name)) {
          frame.box.parentNode.remove();
          charts.delete(name);
        }
      phases.forEach(framed);
      for (const name of phases) {
        const { frame, card } = framed(name);
        card.hide();
        const style = getComputedStyle(frame.box);
        const inner = frame.box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        const across = Math.min(WIDEST, inner);
        if (across < 100) continue;
        const focused = document.activeElement?.closest?.(".dot")?.dataset.key;
        const inside = frame.box.contains(document.activeElement);
        frame.draw(picture(report, name, across, card), {
          title: `${capital(phaseWord(name))} · ${seconds(report.phases[name].seconds)}`,
          note: sentence(report, name),
        });
        const again = inside && [...frame.box.querySelectorAll(".dot")].find((dot) => dot.dataset.key === focused);
        if (again) again.focus({ preventScroll: true }); // what had the keyboard is drawn anew
      }
    }
    let wide = 0;
    new ResizeObserver(() => {
      if (place.clientWidth && place.clientWidth !== wide && state.report?.roofline_chart) draw();
      wide = place.clientWidth;
    }).observe(place);
    return { draw };
  },
};
