// Tab: what lies on the fullest GPU, and how far sequences can grow before it overflows.
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { bytes, digits, percent } from "./format.js";
import { draws } from "./kind.js";
import { setPlan, state } from "./state.js";
import { palette } from "./theme.js";

const PARTS = [
  ["weights", "weights", "blue"],
  ["kv_cache", "KV cache", "orange"],
  ["activation", "activations", "sky"],
  ["overhead", "overhead", "grey"],
];

const UNLIMITED = 1e9; // where nothing grows with the batch, the report's largest one is this

// What fits beside each other at these lengths, in words.
const largest = (m) =>
  m.max_batch_size >= UNLIMITED
    ? ""
    : `${digits(m.max_batch_size)} ${draws() ? "images at once" : "sequences of these lengths"}`;

function roomText(m) {
  const tokens = m.max_total_tokens === null ? "" : `${digits(m.max_total_tokens)} tokens`;
  const held = [tokens, largest(m)].filter(Boolean).join(", ");
  return [
    m.kv_bytes_per_token > 0 && `${bytes(m.kv_bytes_per_token)} of KV cache per token and GPU`,
    held && `room for ${held}` + (tokens ? ` in ${bytes(m.kv_capacity_bytes)}` : ""),
  ]
    .filter(Boolean)
    .join(" · ");
}

// The limits stand one above the other, so that they never run together.
function limits(m) {
  const p = palette();
  const same = m.usable_bytes === m.capacity_bytes;
  const lines = same
    ? [[m.usable_bytes, `usable, all of ${bytes(m.capacity_bytes)}`, "solid"]]
    : [
        [m.usable_bytes, `usable ${bytes(m.usable_bytes)}`, "solid"],
        [m.capacity_bytes, `capacity ${bytes(m.capacity_bytes)}`, "dot"],
      ];
  return {
    shapes: lines.map(([value, , dash], i) => ({
      type: "line",
      x0: value / 1e9,
      x1: value / 1e9,
      yref: "paper",
      y0: 0,
      y1: 1 + 0.08 * i,
      line: { color: p.ink, width: 1.5, dash },
    })),
    annotations: lines.map(([value, text], i) => ({
      x: value / 1e9,
      yref: "paper",
      y: 1,
      yshift: 15 * i,
      yanchor: "bottom",
      xanchor: "right",
      text,
      showarrow: false,
      font: { size: 11 },
    })),
  };
}

function stacked(one) {
  const p = palette();
  const plans = [
    ["this plan", state.report.memory],
    ...(state.before ? [["pinned", state.before.memory]] : []),
  ].reverse();
  const names = plans.map(([name]) => name);
  const held = PARTS.filter(([key]) => plans.some(([, m]) => m[`${key}_bytes`] > 0));
  const traces = held.map(([key, word, color]) => ({
    type: "bar",
    orientation: "h",
    name: word,
    y: names,
    x: plans.map(([, m]) => m[`${key}_bytes`] / 1e9),
    marker: { color: p[color] },
    text: plans.map(([, m]) =>
      m[`${key}_bytes`] > 0.07 * Math.max(m.capacity_bytes, m.total_bytes)
        ? `${word}<br>${bytes(m[`${key}_bytes`])}`
        : "",
    ),
    textposition: "inside",
    insidetextanchor: "middle",
    textangle: 0,
    textfont: { size: 11 },
    hovertext: plans.map(
      ([name, m]) => `${name}: ${word} ${bytes(m[`${key}_bytes`])} (${percent(m[`${key}_bytes`] / m.total_bytes)})`,
    ),
    hoverinfo: "text",
  }));
  const m = state.report.memory;
  const fits = m.total_bytes <= m.usable_bytes;
  one.draw(
    traces,
    {
      barmode: "stack",
      xaxis: {
        title: "GB on the fullest GPU",
        range: [0, (Math.max(m.total_bytes, m.capacity_bytes, state.before?.memory.total_bytes ?? 0) / 1e9) * 1.14],
      },
      yaxis: {},
      bargap: 0.3,
      uniformtext: { minsize: 9, mode: "hide" },
      ...limits(m),
      legend: { orientation: "h", y: -0.38, x: 0, yanchor: "top", traceorder: "normal" },
      margin: { l: 60, r: 16, t: 40, b: 90 },
    },
    plans.flatMap(([name, mem]) =>
      PARTS.map(([key]) => ({
        plan: name,
        part: key,
        bytes: mem[`${key}_bytes`],
        usable_bytes: mem.usable_bytes,
        capacity_bytes: mem.capacity_bytes,
      })),
    ),
    {
      title:
        `${bytes(m.total_bytes)} of ${bytes(m.usable_bytes)} usable` +
        (fits ? "" : `: ${bytes(m.total_bytes - m.usable_bytes)} too much`),
      note: roomText(m),
      height: plans.length > 1 ? 306 : 246,
    },
  );
}

// Bytes against sequences: what grows is the cache (and activations, here as they are); the rest is a floor.
function growth(one) {
  const p = palette();
  const { memory: m, workload } = state.report;
  const each = m.kv_cache_bytes / workload.batch_size;
  one.element.hidden = !(each > 0); // a network without a cache has nothing to show here
  if (!(each > 0)) return;
  const room = m.max_batch_size;
  const grows = room < 0.98 * ((m.usable_bytes - m.total_bytes + m.kv_cache_bytes) / each); // not the cache alone
  const limit = Math.max(
    2,
    Math.ceil(Math.max(workload.batch_size * 1.6, Math.min(room * 1.3, workload.batch_size * 400), 4)),
  );
  const xs = Array.from({ length: 61 }, (_, i) => (limit * i) / 60);
  const area = (key, word, color, value) => ({
    type: "scatter",
    mode: "lines",
    stackgroup: "all",
    name: word,
    x: xs,
    y: xs.map((n) => value(n) / 1e9),
    line: { width: 0 },
    fillcolor: p[color],
    hovertemplate: `${word} %{y:.3~s} GB<extra></extra>`,
  });
  const traces = [
    area("overhead", "overhead", "grey", () => m.overhead_bytes),
    area("activation", "activations", "sky", () => m.activation_bytes),
    area("weights", "weights", "blue", () => m.weights_bytes),
    area("kv_cache", "KV cache", "orange", (n) => n * each),
  ];
  const line = (y, dash) => ({
    type: "line",
    xref: "paper",
    x0: 0,
    x1: 1,
    y0: y / 1e9,
    y1: y / 1e9,
    line: { color: p.ink, width: 1.5, dash },
  });
  const upright = (x, color) => ({
    type: "line",
    x0: x,
    x1: x,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color, width: 1.5, dash: "4px,3px" },
  });
  const annotation = (x, text, color, y) => ({
    x,
    yref: "paper",
    y,
    text,
    showarrow: false,
    xanchor: x > limit * 0.6 ? "right" : "left",
    xshift: x > limit * 0.6 ? -5 : 5,
    font: { size: 11.5, color },
    bgcolor: p.paper,
    opacity: 0.92,
  });
  const shapes = [line(m.usable_bytes, "solid"), line(m.capacity_bytes, "dot"), upright(workload.batch_size, p.ink)];
  const annotations = [annotation(workload.batch_size, `now: ${workload.batch_size}`, p.ink, 0.07)];
  if (room > 0 && room <= limit) {
    shapes.push(upright(room, p.vermillion));
    annotations.push(
      annotation(room, `${grows ? "at most" : "overflows after"} ${digits(room, 6)} sequences`, p.vermillion, 0.16),
    );
  }
  const length = [workload.input_len, workload.output_len].map((tokens) => digits(tokens)).join(" + ");
  one.draw(
    traces,
    {
      xaxis: { title: `sequences of ${length} tokens at once`, range: [0, limit] },
      yaxis: { title: "GB on the fullest GPU", range: [0, Math.max(m.capacity_bytes * 1.08, m.total_bytes) / 1e9] },
      shapes,
      annotations,
      hovermode: "x unified",
    },
    xs.map((n) => ({
      sequences: n,
      weights_bytes: m.weights_bytes,
      activation_bytes: m.activation_bytes,
      overhead_bytes: m.overhead_bytes,
      kv_cache_bytes: n * each,
      usable_bytes: m.usable_bytes,
    })),
    {
      title: "KV cache against sequences",
      note:
        room < 1
          ? "Not even one sequence fits: weights, activations and overhead fill the memory."
          : `${bytes(each)} of cache per sequence: ${largest(m) || "any number of sequences"} ` +
            `${grows ? "fit, because activations also grow" : "fit"}; all else as in this plan.  ` +
            "Solid: usable, dotted: capacity. Click to choose a batch size.",
    },
  );
}

export const memoryView = {
  id: "memory",
  label: "Memory",
  mount(host) {
    const first = chart(host, { name: "memory", title: "", height: 230 });
    const second = chart(host, {
      name: "memory-sequences",
      title: "",
      height: 380,
      onpick: (point) => setPlan({ batch_size: Math.max(1, Math.round(point.x)) }),
    });
    const facts = h("div", { class: "table facts", tabindex: "0", role: "region", "aria-label": "Memory in figures" });
    host.append(facts);
    return {
      draw() {
        stacked(first);
        growth(second);
        const rows = [
          ["weights", "weights_bytes"],
          ["KV cache", "kv_cache_bytes"],
          ["activations", "activation_bytes"],
          ["overhead", "overhead_bytes"],
          ["total", "total_bytes"],
          ["usable", "usable_bytes"],
          ["capacity", "capacity_bytes"],
          ["KV cache per token", "kv_bytes_per_token"],
          ["max tokens in the KV cache", "max_total_tokens"],
          ["largest batch", "max_batch_size"],
          ["max batch, prefill only", "max_batch_size_prefill"],
          ["max batch, decode", "max_batch_size_decode"],
        ]
          .filter(([, key]) => state.report.phases.decode || !/_prefill$|_decode$/.test(key))
          .filter(([, key]) => !/^kv_|_tokens$/.test(key) || state.report.memory[key]);
        const shown = (m, key) =>
          m[key] === null || (key.startsWith("max") && m[key] >= UNLIMITED)
            ? "–"
            : key.startsWith("max")
              ? digits(m[key])
              : bytes(m[key]);
        const body = rows.map(([word, key]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, word),
            h("td", {}, shown(state.report.memory, key)),
            state.before && h("td", {}, shown(state.before.memory, key)),
          ),
        );
        facts.replaceChildren(
          h(
            "table",
            {},
            h("caption", {}, "Figures, per GPU"),
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                h("th", { scope: "col" }, "figure"),
                h("th", { scope: "col" }, "this plan"),
                state.before && h("th", { scope: "col" }, "pinned"),
              ),
            ),
            h("tbody", {}, body),
          ),
        );
      },
    };
  },
};
