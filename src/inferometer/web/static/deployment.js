// A deployment that a search looked at: what it does, whether it keeps the limits, how it is opened, how it starts.
import { copy, h, say } from "./dom.js";
import { digits, figure, milliseconds, money, percent } from "./format.js";
import { setPlan } from "./state.js";

const ENGINES = { vllm: "vLLM", sglang: "SGLang", trtllm: "TensorRT-LLM", bench: "Measure it" };
const OUTCOMES = { wins: "best", ties: "tied with the best", holds: "meets the limits", beaten: "beaten" };
const SIGNS = { below: ["<", ">"], "at least": ["≥", "≤"] }; // of a rate that is not the highest, and of its cost

// One server of a deployment (or of a point of the front) as the plan on the left; of two pools the one that answers.
function planArgs({ gpu, pools, max_num_batched_tokens }) {
  const pool = pools.at(-1);
  return {
    gpu,
    tensor_parallel_size: pool.tensor_parallel_size,
    pipeline_parallel_size: pool.pipeline_parallel_size,
    data_parallel_size: pool.data_parallel_size,
    enable_expert_parallel: pool.enable_expert_parallel,
    quantization: pool.quantization,
    kv_cache_dtype: pool.kv_cache_dtype,
    max_num_batched_tokens: pool.max_num_batched_tokens ?? max_num_batched_tokens ?? null,
    max_num_seqs: pool.max_num_seqs ?? null,
  };
}

export function open(deployment) {
  setPlan(planArgs(deployment));
  say(`the plan is now one server of ${deployment.label ?? deployment.plan}`);
}

export const beaten = (deployment) => deployment.verdict === "beaten";
const metricsOf = (deployment) => deployment.simulated ?? deployment.priced;
export const allowed = (limit) => `${digits(limit)} ms`; // as it was typed
export const shareName = (answer) => `p${digits(answer.goodput_share * 100)}`;

// What the share of the requests that counts takes, in ms: late(deployment, "ttft")
const late = (deployment, name) => deployment.trial?.[`${name}_ms`]?.share ?? null;

// "TTFT p90 681 ms > 500 ms" for each limit that is missed
export function missedLimits(deployment, answer) {
  return Object.entries(deployment.missed ?? {}).map(
    ([name, value]) =>
      `${name.toUpperCase()} ${shareName(answer)} ${value === null ? "never ends" : milliseconds(value)} > ` +
      allowed(answer.goodput[name]),
  );
}

function latency(deployment, answer, name) {
  const value = milliseconds(late(deployment, name));
  if (!(name in (deployment.missed ?? {}))) return value;
  return h("span", { class: "missed" }, value, h("small", {}, ` > ${allowed(answer.goodput[name])}`));
}

// [{ key, label, value, text, less }]: the figures of a card, of a row and of a comparison
export function figures(deployment, answer) {
  const m = metricsOf(deployment);
  const [rate, cost] = SIGNS[deployment.bound] ?? ["", ""];
  const share = shareName(answer);
  const of = (name) => ({ text: latency(deployment, answer, name), value: late(deployment, name), less: true });
  return [
    { key: "rate", label: "requests/s", value: m.request_rate, text: `${rate}${figure(m.request_rate, 4)}` },
    {
      key: "per_gpu",
      label: "tokens/s per GPU",
      value: m.output_throughput_per_gpu,
      text: `${rate}${figure(m.output_throughput_per_gpu)}`,
    },
    {
      key: "per_user",
      label: "tokens/s per user",
      value: m.output_throughput_per_user,
      text: figure(m.output_throughput_per_user),
    },
    { key: "ttft", label: `TTFT ${share}`, ...of("ttft") },
    { key: "tpot", label: `TPOT ${share}`, ...of("tpot") },
    {
      key: "cost",
      label: "$ per M tokens",
      value: m.cost_per_million_output_tokens,
      text: m.cost_per_million_output_tokens === null ? "–" : `${cost}${money(m.cost_per_million_output_tokens)}`,
      less: true,
    },
  ];
}

// The winner with its figures, what it leads by, and what can be done with it.
export function card(deployment, answer, { launch }) {
  const { runner_up: lead, prediction_error: error } = answer.margin ?? {};
  const tie = lead / (1 + lead) <= error ? `: a tie, within the expected error of ${percent(error)}` : "";
  return h(
    "section",
    { class: "winner", "aria-label": "The best deployment" },
    h(
      "header",
      {},
      h(
        "div",
        {},
        h(
          "h3",
          {},
          h("span", { class: "star", "aria-hidden": "true" }, "★ "),
          `${deployment.label} on ${deployment.gpu}`,
        ),
        lead > 0 && h("p", { class: "lead" }, `${percent(lead)} ahead of the next plan that meets the limits${tie}`),
      ),
      h("button", { type: "button", class: "go", onclick: () => open(deployment) }, "Open this plan"),
      h("button", { type: "button", onclick: () => launch(deployment) }, "How to start it"),
    ),
    h(
      "dl",
      {},
      figures(deployment, answer).map(({ key, label, text }) =>
        h(
          "div",
          {},
          h("dt", {}, label),
          h("dd", {}, text, answer.goodput[key] && h("small", {}, `of ${allowed(answer.goodput[key])} allowed`)),
        ),
      ),
      h(
        "div",
        {},
        h("dt", {}, "GPUs in use"),
        h("dd", {}, `${deployment.gpus}`, h("small", {}, `of ${answer.num_gpus}`)),
      ),
    ),
    answer.why.map((sentence) => h("p", {}, sentence)),
  );
}

function outcome(deployment, answer) {
  const missed = missedLimits(deployment, answer);
  const why = missed.length ? missed.join(", ") : deployment.reason;
  const text = OUTCOMES[deployment.verdict] + (beaten(deployment) && !missed.length ? ": falls behind" : "");
  return h("span", { class: `outcome of-${deployment.verdict}`, title: why || null }, text);
}

// A row of the table of simulated deployments; its head is `columns`.
export function row(deployment, answer, { launch }) {
  const button = (text, act) =>
    h(
      "button",
      {
        type: "button",
        onclick: (event) => {
          event.stopPropagation(); // the row itself opens the plan
          act(deployment);
        },
      },
      text,
    );
  return {
    best: deployment.verdict === "wins",
    kind: deployment.verdict,
    pick: () => open(deployment),
    cells: [
      deployment.label,
      outcome(deployment, answer),
      ...machine(answer).map(({ text }) => text(deployment)),
      ...figures(deployment, answer).map(({ text }) => text),
      h(
        "span",
        { class: "acts" },
        button("Open", open),
        Object.keys(deployment.scripts ?? {}).length > 0 && button("Start", launch),
      ),
    ],
  };
}

export function columns(answer) {
  const machines = machine(answer).map(({ label }) => label);
  return ["plan", "outcome", ...machines, ...figures(answer.plans[0], answer).map(({ label }) => label), ""];
}

// Columns of the machine, where plans differ in it.
const machine = ({ space, num_gpus, plans }) => [
  ...(space.gpu.length > 1 ? [{ label: "GPU", text: (one) => one.gpu }] : []),
  ...(plans.some((one) => one.gpus !== num_gpus) ? [{ label: "GPUs", text: (one) => `${one.gpus}` }] : []),
];

// How to start a deployment, with each engine: a block of a shell that can be copied whole.
export function launchSection(deployment) {
  return h(
    "section",
    { class: "commands", tabindex: "-1", "aria-label": "How to start it" },
    h("h3", {}, `How to start ${deployment.label}`),
    Object.entries(deployment.scripts).map(([engine, script]) =>
      h(
        "details",
        { open: engine === Object.keys(deployment.scripts)[0] },
        h("summary", {}, ENGINES[engine] ?? engine),
        h("button", { type: "button", class: "copy", onclick: () => copy(script, "commands") }, "Copy"),
        h("pre", { tabindex: "0" }, script),
      ),
    ),
  );
}

// The same for the data of a chart: without lists and tables inside.
export const csvRow = (deployment) => ({
  outcome: deployment.verdict,
  bound: deployment.bound,
  plan: deployment.label,
  gpu: deployment.gpu,
  gpus: deployment.gpus,
  mode: deployment.mode,
  ...metricsOf(deployment),
});
