// What a simulation amounts to: a sentence, figures, a table of latencies; each beside those of a pinned simulation.
import { band } from "./band.js";
import { h } from "./dom.js";
import { table } from "./form.js";
import { bytes, change, digits, figure, milliseconds, percent, seconds } from "./format.js";
import { TIERS } from "./tiers.js";

const goodShare = (run) =>
  run.goodput && run.request_throughput ? run.request_goodput / run.request_throughput : null;
const FIGURES = [
  { label: "Requests/s", of: (run) => run.request_throughput, text: (v) => figure(v) },
  { label: "Output tokens/s", of: (run) => run.output_throughput, text: (v) => figure(v) },
  { label: "Meet the goals", of: goodShare, text: (v) => percent(v) },
  { label: "TTFT, median", of: (run) => run.median_ttft_ms, text: milliseconds, less: true, error: "ttft" },
  { label: "TTFT, p99", of: (run) => run.p99_ttft_ms, text: milliseconds, less: true },
  { label: "TPOT, median", of: (run) => run.median_tpot_ms, text: milliseconds, less: true, error: "tpot" },
  { label: "TPOT, p99", of: (run) => run.p99_tpot_ms, text: milliseconds, less: true },
  { label: "KV cache, peak", of: (run) => run.max_kv_cache_usage, text: (v) => percent(v), less: true },
];
const LATENCIES = [
  ["ttft", "TTFT"],
  ["tpot", "TPOT"],
  ["itl", "ITL"],
  ["e2el", "End to end"],
];
const STATISTICS = ["mean", "median", "p90", "p99"];

// How a figure moved: "▼ −12.0%", in the colour of better or worse
function delta(value, before, less, text) {
  const moved = value === 0 && before ? "−100%" : change(value, before);
  if (!moved) return null;
  const same = moved === "±0%";
  const kind = same ? "" : value < before === Boolean(less) ? "better" : "worse";
  const sign = same ? "" : value > before ? "▲ " : "▼ ";
  return h("span", { class: `delta ${kind}`, title: `pinned: ${text(before)}` }, `${sign}${moved}`);
}

export function tiles(run, before) {
  const shown = FIGURES.filter(({ of }) => of(run) !== null && of(run) !== undefined);
  return h(
    "dl",
    { class: "tiles" },
    shown.map(({ label, of, text, less, error }) =>
      h(
        "div",
        { class: "tile" },
        h("dt", {}, label, band(run.expected_error?.[error])),
        h("dd", {}, h("span", { class: "value" }, text(of(run))), before && delta(of(run), of(before), less, text)),
      ),
    ),
  );
}

// How long sessions took, what of it was the model, and what one costs; hits and traffic of the cache's tiers
export function sessionTable(run) {
  const one = run.sessions;
  if (!one?.completed) return null;
  const rows = [
    ["session", "duration_s"],
    ["at the server", "model_s"],
    ["tools and people", "idle_s"],
  ];
  const cost = one.cost_per_session === null ? "" : `, $${digits(one.cost_per_session)} each`;
  const caption =
    `${digits(one.completed, 7)} sessions of ${digits(one.turns_per_session)} turns, ` +
    `${percent(one.cached_share)} of their prompts from the cache${cost}`;
  return table(
    caption,
    ["", ...STATISTICS],
    rows.map(([label, key]) => ({ cells: [label, ...STATISTICS.map((word) => seconds(one[`${word}_${key}`]))] })),
  );
}

export function tierTable(run) {
  const tiers = run.kv_tiers ?? [];
  if (!tiers.length) return null;
  const heads = ["", "size", "used", "hits", "loaded", "stored", "evicted"];
  const size = (v) => (v === null ? "no limit" : bytes(v));
  return table(
    "The KV cache's tiers",
    heads,
    tiers.map((t) => ({
      cells: [
        TIERS[t.name] ?? t.name,
        size(t.capacity_bytes),
        bytes(t.used_bytes),
        percent(t.hit_rate),
        ...[t.loaded_bytes, t.stored_bytes, t.evicted_bytes].map(bytes),
      ],
    })),
  );
}

// "200 requests · 1024 in, 128 out, at 4/s · 1 × NVIDIA H200"
export const titleOf = (run) =>
  [`${digits(run.num_prompts, 7)} requests`, run.traffic, run.model, run.machine].filter(Boolean).join(" · ");

export function sentences(run) {
  const goals = Object.entries(run.goodput ?? {}).map(([name, limit]) => `${name.toUpperCase()} ≤ ${limit} ms`);
  const share = goodShare(run);
  const facts = [
    run.traffic,
    run.model,
    run.machine,
    run.scheduler && `scheduler ${run.scheduler}`,
    run.preemptions ? `${digits(run.preemptions, 7)} preemptions` : "",
    run.prefix_cache_hit_rate ? `prefix cache hits ${percent(run.prefix_cache_hit_rate)}` : "",
    run.rejected ? `${digits(run.rejected, 7)} rejected` : "",
  ];
  if (run.reason)
    return [
      h("p", { class: "first" }, "No request can be served"),
      h("p", { class: "note" }, facts.filter(Boolean).join(" · ")),
      h("p", { class: "problem" }, run.reason),
    ];
  return [
    h(
      "p",
      { class: "first" },
      `${digits(run.completed, 7)} requests in ${seconds(run.duration)}: ` +
        `${figure(run.request_throughput)} requests/s, ${figure(run.output_throughput)} output tokens/s`,
    ),
    share !== null &&
      h(
        "p",
        { class: share < 0.9 ? "missed" : "" },
        `${figure(run.request_goodput)} requests/s (${percent(share)}) meet the goals: ${goals.join(", ")}`,
      ),
    h("p", { class: "note" }, facts.filter(Boolean).join(" · ")),
    Object.entries(run.rejection_reasons ?? {}).map(([why, n]) =>
      h("p", { class: "warning" }, `${digits(n, 7)} × ${why}`),
    ),
    (run.warnings ?? []).map((warning) => h("p", { class: "warning" }, warning)),
  ];
}

export function latencyTable(run, before) {
  const present = LATENCIES.filter(([key]) => run[`mean_${key}_ms`] != null);
  const value = (one, key, statistic) => one[`${statistic}_${key}_ms`];
  const rows = present.flatMap(([key, word]) => [
    { cells: [word, ...STATISTICS.map((q) => milliseconds(value(run, key, q)))], best: Boolean(before) },
    ...(before
      ? [
          { cells: ["pinned", ...STATISTICS.map((q) => milliseconds(value(before, key, q)))] },
          {
            cells: [
              "difference",
              ...STATISTICS.map((q) => delta(value(run, key, q), value(before, key, q), true, milliseconds) ?? "–"),
            ],
          },
        ]
      : []),
  ]);
  return table(
    before ? "Latencies, and those of the pinned simulation" : "Latencies",
    ["latency", ...STATISTICS],
    rows,
  );
}
