// Tab: which deployment to run on some GPUs. The winner, the Pareto front, the others and why not, how to start it.
import { get, job, Refused, resumed } from "./api.js";
import { card, columns, launchSection, row } from "./deployment.js";
import { copy, h, show } from "./dom.js";
import { form, progress, table } from "./form.js";
import { digits } from "./format.js";
import { paretoChart } from "./pareto.js";
import { withModel } from "./request.js";
import { questionChanges, rivals } from "./rivals.js";
import { setView, state } from "./state.js";
import { traceFile } from "./tracefile.js";

const EXAMPLE = { finalists: 2, mode: "aggregated", relax: false }; // what makes a search take a second or two
const PRECISION = ["quantization", "kv_cache_dtype"];

const choice = (name, label, title, choices) => ({
  name,
  label,
  title,
  kind: "choice",
  value: choices[0][0],
  choices: () => choices,
});

const FIELDS = [
  { name: "num_gpus", label: "GPUs", kind: "number", value: 8, least: 1, title: "GPUs to use at most, of each type" },
  {
    name: "gpu",
    label: "GPU types",
    kind: "text",
    value: () => state.plan.gpu ?? "h100-sxm",
    title: "One or more, separated by commas: h100-sxm,h200",
  },
  {
    name: "request_rate",
    label: "Requests/s",
    kind: "number",
    value: "",
    placeholder: "max",
    title: "Requests per second to serve; empty: find the highest rate",
  },
  choice("mode", "Prefill and decode", "On the same servers (aggregated), or on separate pools (disaggregated)", [
    ["both", "either"],
    ["aggregated", "aggregated"],
    ["disaggregated", "disaggregated"],
  ]),
  choice(
    "precision",
    "Precision",
    "Weights and KV cache: all formats that the checkpoint allows, or those of the plan on the left",
    [
      ["any", "any"],
      ["plan", "the plan's"],
    ],
  ),
  { name: "ttft", label: "TTFT at most", unit: "ms", kind: "number", value: 500, least: 0 },
  { name: "tpot", label: "TPOT at most", unit: "ms", kind: "number", value: 50, least: 0 },
  {
    name: "share",
    label: "Met by",
    unit: "% of requests",
    kind: "number",
    value: 90,
    least: 1,
    title: "Share of requests that must meet the limits",
  },
  choice("objective", "Optimise for", "How plans that meet the limits are ranked", [
    ["throughput", "throughput"],
    ["cost", "cost"],
    ["latency", "latency"],
    ["energy", "energy"],
  ]),
];

// The question as the server takes it, from the form and the plan on the left.
function questionOf(ask, trace) {
  const limits = ["ttft", "tpot"].filter((name) => ask.number(name) !== null);
  const share = ask.number("share");
  const options = {
    num_gpus: ask.number("num_gpus"),
    gpu: ask.value("gpu") || null,
    goodput: limits.map((name) => `${name}:${ask.number(name)}`).join(",") || null,
    goodput_share: share === null || share === 90 ? null : share / 100,
    request_rate: ask.number("request_rate"),
    objective: ask.value("objective"),
    mode: ask.value("mode"),
    trace: trace.trace,
    columns: trace.columns,
  };
  const plan = withModel(state.plan);
  if (options.gpu !== (plan.gpu ?? "h100-sxm")) delete plan.gpu_figures;
  else delete options.gpu;
  if (ask.value("precision") === "any") for (const name of PRECISION) delete plan[name];
  return { plan, ...Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null)) };
}

const SEARCHED = ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"];
const UNUSED = [...SEARCHED, "max_num_batched_tokens", "max_num_seqs", "batch_size", "nodes"];

// What a result depends on: two questions with the same key have the same result.
function keyOf({ plan, ...options }) {
  const kept = Object.entries(plan).filter(([name]) => !UNUSED.includes(name));
  return JSON.stringify([kept.sort(), Object.entries(options).sort()]);
}

function accounting({ counts, seconds }) {
  const plans = (counts.plans_aggregated ?? 0) + (counts.plans_disaggregated ?? 0);
  const simulations = counts.simulations
    ? `, ${digits(counts.simulations, 6)} simulations of ${counts.plans_simulated} plans`
    : "";
  return (
    `${digits(plans, 7)} plans at ${digits(counts.points ?? 0, 9)} loads estimated${simulations}: ` +
    `${digits(seconds.total)} s in total`
  );
}

export const searchView = {
  id: "search",
  label: "Search",
  asks: true,
  alone: true,
  folds: true,
  mount(host) {
    let shown = null; // { answer, name, key, example }
    let pinned = null; // { answer, name }
    let running = null;
    let launched = null; // the deployment whose commands are shown
    let followed = null; // the job of the address, however it ended
    let notice = null; // a sentence in the place of a result, with a button
    const ask = form("search", FIELDS, { button: "Search", run: () => search() });
    const trace = traceFile("search");
    const bar = progress();
    const [head, above, below] = [h("div", {}), h("div", {}), h("div", {})];
    host.append(
      h(
        "p",
        { class: "note" },
        "Estimates every layout for the model and the lengths on the left, simulates the best of them with real " +
          "arrivals, and says which to run.",
      ),
      ask.element,
      trace.element,
      bar.element,
      head,
      above,
    );
    const pareto = paretoChart(host, () => shown?.answer.command ?? "");
    host.append(below);

    // Follow a job to its end; what it found is shown with `about`.
    async function follow(current, about) {
      running?.stop();
      running = current;
      notice = null;
      bar.show(current.stop);
      bar.update(0, "sending the request");
      ask.refuse();
      draw();
      try {
        const answer = await current.done;
        if (running === current) [shown, launched] = [{ ...about(), answer }, null];
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (running === current) failed(error, about());
      }
      if (running !== current) return;
      running = null;
      bar.hide();
      draw();
    }

    function failed(error, { example }) {
      if (error.status === 404) notice = "The server no longer keeps this result; its settings are in the form.";
      else if (!example) ask.refuse(error.message);
      else notice = `No example: ${error.message}`;
    }

    function begin(body, example) {
      let name = null;
      const onProgress = (share, text) => bar.update(share, example ? `an example for this model: ${text}` : text);
      const current = job("/api/search", body, onProgress, (given) => {
        name = given;
        if (!example) setView({ search_job: (followed = given) }, true);
      });
      return follow(current, () => ({ name, key: keyOf(body), example }));
    }

    const search = () => begin(questionOf(ask, trace), false);

    function example() {
      const { num_gpus, goodput, plan } = questionOf(ask, trace);
      return begin({ plan, num_gpus, goodput, ...EXAMPLE }, true);
    }

    // What the address says: a result, one to compare with; else something to look at.
    function restore() {
      const { search_job: name, search_pin: pin } = state.view;
      followed = name ?? null;
      if (pin && pinned?.name !== pin) recallPinned(pin);
      if (!pin) pinned = null;
      if (name) follow(resumed(name, bar.update), () => ({ name, key: keyOf(questionOf(ask, trace)), example: false }));
      else if (!shown) example();
    }

    async function recallPinned(name) {
      pinned = { name, answer: null };
      try {
        const { result } = await get(`/api/jobs/${encodeURIComponent(name)}`);
        if (pinned?.name === name) pinned.answer = result ?? null;
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
      if (!pinned?.answer) pin(null);
      draw();
    }

    function pin(result) {
      pinned = result && { name: result.name, answer: result.answer };
      setView({ search_pin: result?.name ?? null }, true);
      draw();
    }

    const again = (text) => h("button", { type: "button", class: "retreat", onclick: search }, text);

    function drawHead() {
      const stale = shown && !shown.example && !running && shown.key !== keyOf(questionOf(ask, trace));
      show(
        head,
        notice && h("p", { class: "problem", role: "status" }, notice, again("Run it again")),
        shown?.example &&
          h(
            "p",
            { class: "hint" },
            h("b", {}, "An example: "),
            `the two best layouts for ${shown.answer.model} on ${shown.answer.num_gpus} GPUs. `,
            "Search tries more of them, disaggregated ones included.",
          ),
        stale && h("p", { class: "hint" }, "The plan or the search settings have changed.", again("Search again")),
        shown && h("div", { class: "question" }, h("p", {}, shown.answer.title), pinRow()),
      );
    }

    function pinRow() {
      const copied = h(
        "button",
        { type: "button", onclick: () => copy(shown.answer.command, "command") },
        "Copy search command",
      );
      if (!pinned?.answer)
        return h(
          "div",
          { class: "acts" },
          h(
            "button",
            {
              type: "button",
              id: "pin-search",
              title: "Keep this result, and compare the next",
              onclick: () => pin(shown),
            },
            "Pin this search",
          ),
          copied,
        );
      const changes = questionChanges(pinned.answer, shown.answer);
      return h(
        "div",
        { class: "acts pinned" },
        h("span", { class: "pinword" }, "Pinned"),
        changes.length
          ? changes.map((one) => h("span", { class: "word" }, `${one.name} `, h("s", {}, one.before), " → ", one.now))
          : h("span", { class: "word" }, "the same search: change a setting and search"),
        h("button", { type: "button", id: "unpin-search", onclick: () => pin(null) }, "Unpin"),
        copied,
      );
    }

    function start(deployment) {
      launched = deployment;
      draw();
      const place = below.querySelector(".commands");
      place?.scrollIntoView({ block: "start", behavior: "smooth" });
      place?.focus({ preventScroll: true });
    }

    function drawWinner({ winner, reason, relaxations, warnings, plans }) {
      show(
        above,
        winner
          ? card(plans[0], shown.answer, { launch: start })
          : [
              h("p", { class: "problem" }, h("b", {}, "No plan meets the goal:  "), reason),
              relaxations.length > 0 && h("p", { class: "hint" }, "Changes that would work (each was tried):"),
              h(
                "ul",
                { class: "relaxations" },
                relaxations.map((one) => h("li", {}, h("code", {}, one.change), ` → ${one.plan}`)),
              ),
            ],
        warnings.map((warning) => h("p", { class: "warning" }, warning)),
        compared() && rivals(pinned.answer, shown.answer),
      );
    }

    const compared = () => pinned?.answer && pinned.name !== shown.name;

    function drawOthers({ plans, rejected }) {
      const answer = shown.answer;
      show(
        below,
        plans.length > 0 &&
          table(
            "Plans that were simulated",
            columns(answer),
            plans.map((one) => row(one, answer, { launch: start })),
          ),
        plans.some((one) => one.verdict === "beaten") &&
          h(
            "p",
            { class: "note legend-of-table" },
            "beaten: simulated until it could no longer win. Its rate is below the one shown (<), its cost " +
              "above (>). There it misses the limit in red, or falls behind: its queue keeps growing.",
          ),
        rejected.length > 0 &&
          table(
            "Promising, but ruled out",
            ["plan", "GPU", "why not"],
            rejected.slice(0, 6).map((one) => ({ cells: [one.label, one.gpu, one.reason] })),
          ),
        plans.length > 0 && (launched ?? plans[0]).scripts && launchSection(launched ?? plans[0]),
        h("p", { class: "note" }, accounting(answer)),
      );
    }

    function draw() {
      drawHead();
      const answer = shown?.answer;
      host.classList.toggle("busy", Boolean(running));
      pareto.element.hidden = !answer?.front?.length;
      if (!answer) return (show(above), show(below));
      drawWinner(answer);
      if (answer.front.length) pareto.draw(answer, compared() ? pinned.answer : null);
      drawOthers(answer);
    }

    let begun = false;
    return {
      draw() {
        ask.refresh();
        const name = state.view.search_job ?? null;
        if (!begun || (name && name !== followed)) {
          begun = true;
          restore();
        } else draw();
      },
    };
  },
};
