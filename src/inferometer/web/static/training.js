// Tab: one optimizer step of training the model on the left: time, memory, and the schedule of its passes.
import { advice } from "./advice.js";
import { given, latest, post, Refused } from "./api.js";
import { chart, drawing } from "./chart.js";
import { copy, h, show } from "./dom.js";
import { bytes, figure, money, percent, seconds, si } from "./format.js";
import { passRows, pointed, scheduleOf } from "./passes.js";
import { withModel } from "./request.js";
import { memoryOf, operatorTable, stageTable } from "./stages.js";
import { setView, state } from "./state.js";
import { palette } from "./theme.js";
import { setTraining, trainForm, trainingControls } from "./trainform.js";

const PADDING = 10; // pixels beside a drawing, as in training.css
const TILES = [
  ["Step", (a) => seconds(a.step_seconds), (a) => `roofline ${seconds(a.roofline_step_seconds)}`],
  ["Tokens/s per GPU", (a) => figure(a.tokens_per_second_per_gpu), (a) => `${si(a.tokens_per_second)} in all`],
  ["MFU", (a) => percent(a.model_flops_utilization), (a) => `HFU ${percent(a.hardware_flops_utilization)}`],
  ["Memory per GPU", (a) => bytes(a.memory.total_bytes), (a) => `of ${bytes(a.memory.usable_bytes)} usable`],
  ["GPUs", (a) => a.plan.gpus.toLocaleString("en-US"), (a) => a.device.label],
  ["Days", (a) => a.run && figure(a.run.days), (a) => a.run && `${si(a.run.tokens)} tokens`],
  ["Cost", (a) => a.run?.cost && money(a.run.cost), (a) => a.run && `${si(a.run.gpu_hours)} GPU-hours`],
];
const OF_LAYOUT = ["Memory per GPU", "GPUs"]; // what also holds for a layout that cannot be
const when = ({ memory }) => (memory.total_bytes > memory.usable_bytes ? "if it fitted" : "if it ran");
const PARTS = [
  ["forward", "forward", "blue"],
  ["backward", "backward", "green"],
  ["recompute", "recomputation", "orange"],
  ["optimizer", "optimizer", "purple"],
  ["tp_comm", "tensor-parallel communication", "vermillion"],
  ["cp_comm", "context-parallel communication", "vermillion"],
  ["ep_comm", "expert all-to-all", "vermillion"],
  ["pp_comm", "pipeline sends", "vermillion"],
  ["dp_comm", "data-parallel communication", "vermillion"],
  ["pp_bubble", "pipeline bubble", "grey"],
  ["host", "host", "muted"],
];

function tiles(answer) {
  const shown = TILES.filter(([, value]) => value(answer));
  return h(
    "dl",
    { class: `tiles${answer.feasible ? "" : " wont"}` },
    shown.map(([label, value, light]) =>
      h(
        "div",
        { class: "tile", "data-figure": label },
        h("dt", {}, label),
        h(
          "dd",
          {},
          h("span", { class: "value" }, value(answer)),
          h("span", { class: "light" }, answer.feasible || OF_LAYOUT.includes(label) ? light(answer) : when(answer)),
        ),
      ),
    ),
  );
}

function sentences(answer) {
  const how = { controls: trainingControls(), apply: setTraining };
  return [
    h("p", { class: "note" }, answer.title),
    !answer.feasible &&
      h("div", { class: "problem", role: "alert" }, h("b", {}, "Infeasible:  "), advice(answer.reason ?? "", how)),
    h("p", {}, answer.summary),
    answer.warnings.map((warning) => h("p", { class: "warning" }, warning)),
  ];
}

function breakdown(one, answer) {
  const p = palette();
  const parts = PARTS.map(([key, word, color]) => ({ word, color, took: answer.breakdown[key] }))
    .filter(({ took }) => took > 0)
    .sort((a, b) => a.took - b.took);
  const scaled = answer.step_seconds >= 1 ? [1, "s"] : [1e3, "ms"];
  const most = Math.max(...parts.map(({ took }) => took)) * scaled[0];
  one.draw(
    [
      {
        type: "bar",
        orientation: "h",
        y: parts.map(({ word }) => word),
        x: parts.map(({ took }) => took * scaled[0]),
        marker: { color: parts.map(({ color }) => p[color]) },
        text: parts.map(({ took }) => `${percent(took / answer.step_seconds)}  ${seconds(took)}`),
        textposition: "outside",
        cliponaxis: false,
        hoverinfo: "skip",
      },
    ],
    {
      xaxis: { title: `${scaled[1]} of a step`, range: [0, most * (one.box.clientWidth < 560 ? 2.5 : 1.22)] },
      yaxis: { ticks: "" },
      bargap: 0.3,
      margin: { l: 60, r: 12, t: 4, b: 44 },
    },
    [...parts].reverse().map(({ word, took }) => ({
      part: word,
      seconds: took,
      share: took / answer.step_seconds,
    })),
    {
      title: `A step takes ${seconds(answer.step_seconds)}`,
      note: "on the slowest pipeline stage; communication is what is not hidden",
      height: 70 + parts.length * 27,
    },
  );
}

export const trainingView = {
  id: "training",
  label: "Training",
  asks: true,
  alone: true,
  folds: true,
  apart: true,
  mount(host) {
    let answer = given?.training ?? null;
    let ask = null;
    const top = h("div", {});
    const said = h("div", { class: "sentences" });
    const figures = h("div", {});
    host.append(top, said, figures);
    const place = h("div", { hidden: true }); // until there is something to show
    host.append(place);
    const command = () => answer?.command ?? "";
    const rows = () => (answer ? passRows(answer) : []);
    const schedule = drawing(place, { name: "schedule", title: "", rows, command });
    const pointer = pointed(schedule.box, (stage) => pick(stage));
    schedule.box.after(pointer.line);
    const bar = h("div", { class: "bar-of-view" });
    place.append(bar);
    const memory = drawing(place, { name: "training-memory", title: "", rows: () => stageRows(), command });
    const parts = chart(place, { name: "breakdown", title: "", height: 260, command });
    const below = h("div", {});
    place.append(below);
    let wide = 0;
    new ResizeObserver(() => {
      if (answer && schedule.box.clientWidth && roomFor() !== wide) drawings();
    }).observe(schedule.box);

    const roomFor = () => schedule.box.clientWidth - 2 * PADDING;
    const stageRows = () => (answer ? passRows(answer).filter(({ stage }) => stage === chosen()) : []);
    const chosen = () => {
      const number = Number(state.view.train_stage ?? answer.memory.stage);
      return answer.timeline.stages.some(({ stage }) => stage === number) ? number : answer.memory.stage;
    };
    function pick(stage) {
      setView({ train_stage: stage === answer.memory.stage ? null : String(stage) }, true);
      drawings();
    }

    const send = latest(
      (body) => post("/api/train", body),
      ({ value, error }) => {
        if (error && !(error instanceof Refused)) throw error;
        ask.refuse(error?.message);
        ask.mark(error?.control);
        host.classList.toggle("stale", Boolean(error));
        if (value) answer = value;
        draw();
      },
      host,
    );
    const bodyOf = () => {
      const { model, gpu, gpu_figures, config } = withModel(state.plan);
      return { plan: { model, gpu, gpu_figures, config }, training: ask.training() };
    };
    let seen = "";
    function go() {
      const body = bodyOf();
      const now = JSON.stringify(body);
      if (now !== seen) send(body);
      seen = now;
    }

    function stageSwitch() {
      if (answer.timeline.stages.length < 2) return null;
      const select = h(
        "select",
        { id: "train-stage", onchange: () => pick(Number(select.value)) },
        answer.timeline.stages.map(({ stage }) =>
          h("option", { value: String(stage) }, `stage ${stage}`, stage === answer.memory.stage && ", the fullest"),
        ),
      );
      select.value = String(chosen());
      return h("label", { class: "labelled", for: "train-stage" }, "Memory of ", select);
    }

    function drawings() {
      wide = roomFor();
      const { timeline, plan } = answer;
      const virtual = timeline.virtual_stages > 1 ? ` × ${timeline.virtual_stages} virtual stages` : "";
      const stages = `${answer.stages.length} stage${answer.stages.length > 1 ? "s" : ""}`;
      const batches = timeline.micro_batches > 1 ? "micro-batches" : "micro-batch";
      const bubble = percent(answer.breakdown.pp_bubble / answer.step_seconds);
      if (wide <= 0) return; // not in sight: drawn when it is
      const made = scheduleOf(answer, wide);
      pointer.of(made);
      schedule.draw(made.svg, {
        title: `Schedule: ${stages}${virtual}, ${timeline.micro_batches.toLocaleString("en-US")} ${batches}`,
        note:
          (plan.pipeline_parallel_size > 1 ? `the bubble is ${bubble} of the step · ` : "") +
          "numbers are micro-batches; red: the share of a pass that waits for communication" +
          (timeline.fold ? ` · the gap: ${timeline.fold.micro_batches} micro-batches that repeat the same` : ""),
      });
      show(bar, stageSwitch());
      const number = chosen();
      memory.draw(memoryOf(answer, wide, number), {
        title: `Memory of a GPU${answer.stages.length > 1 ? ` of stage ${number}` : ""} over the step`,
        note: answer.peaks[number],
      });
    }

    function draw() {
      if (!answer) return;
      show(
        said,
        sentences(answer),
        h(
          "p",
          {},
          h(
            "button",
            { type: "button", title: answer.command, onclick: () => copy(answer.command, "command") },
            "Copy command",
          ),
        ),
      );
      show(figures, tiles(answer));
      place.hidden = false;
      drawings();
      breakdown(parts, answer);
      show(below, answer.stages.length > 1 && stageTable(answer), operatorTable(answer));
      if (given) document.title = `Training ${answer.model.name} · inferometer`;
    }

    function start() {
      ask = trainForm(() => go());
      const what = "Trains the model on the left on GPUs of the kind on the left; the layout is chosen here.";
      show(top, h("p", { class: "note" }, what), ask.examples, ask.element);
    }

    return {
      draw() {
        if (given) return draw();
        if (!trainingControls().length) return undefined; // the lists are on their way
        if (!ask) start();
        ask.refresh();
        go();
        return draw();
      },
    };
  },
};
