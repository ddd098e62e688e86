// Two searches beside each other: what was asked otherwise, and how far apart their winners are.
import { allowed, figures } from "./deployment.js";
import { table } from "./form.js";
import { h } from "./dom.js";
import { change, digits } from "./format.js";

const CHANCE = 0.01; // simulated figures are no surer than this

const limited = (limit) => (limit ? allowed(limit) : "no limit");

// The question of a search as it was understood: [["TTFT at most", "500 ms"], …]
function question({ model, num_gpus, space, goodput, goodput_share, workload, objective, engine }) {
  return [
    ["model", model],
    ["GPUs", `${num_gpus} × ${space.gpu.join(" or ")}`],
    ["engine", engine],
    ["input, output tokens", `${digits(workload.input_len)}, ${digits(workload.output_len)}`],
    ["requests/s", workload.request_rate ? digits(workload.request_rate) : "highest possible"],
    ["TTFT at most", limited(goodput.ttft)],
    ["TPOT at most", limited(goodput.tpot)],
    ["share that meets them", `${digits(goodput_share * 100)}%`],
    ["best is", objective],
  ];
}

export function questionChanges(before, now) {
  const then = Object.fromEntries(question(before));
  return question(now)
    .map(([name, value]) => ({ name, before: then[name], now: value }))
    .filter((one) => one.before !== one.now);
}

function moved({ value, less }, before) {
  if (!value || !before) return "";
  if (value === before) return "the same";
  if (Math.abs(value / before - 1) < CHANCE) return "about the same";
  const text = change(value, before);
  return h("span", { class: `delta ${value < before === Boolean(less) ? "better" : "worse"}` }, text);
}

export function rivals(before, now) {
  const changes = questionChanges(before, now).map((one) => ({ cells: [one.name, one.before, one.now, ""] }));
  const name = (answer) => (answer.winner ? `${answer.winner.label} on ${answer.winner.gpu}` : "none meets the limits");
  const rows = [...changes, { cells: ["best plan", name(before), name(now), ""], best: true }];
  if (before.winner && now.winner) {
    const then = figures(before.winner, before);
    figures(now.winner, now).forEach((one, i) =>
      rows.push({ cells: [one.label, then[i].text, one.text, moved(one, then[i].value)] }),
    );
    const [a, b] = [before.winner.gpus, now.winner.gpus];
    rows.push({ cells: ["GPUs in use", `${a}`, `${b}`, moved({ value: b, less: true }, a)] });
  }
  return table("The pinned search and this one", ["", "pinned", "now", "difference"], rows);
}
