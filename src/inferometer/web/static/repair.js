// Links that never die: what cannot be read of a plan is left out, each with a note that says so.
import { typed } from "./address.js";
import { Refused } from "./api.js";
import { defaultOf, state } from "./state.js";

const MISTAKES = 60; // of one link, after which it is the default plan

const controlOf = (name) => state.controls.find((c) => c.name === name);
const isWord = (name) => name === "gpu_figures" || name === "config" || Boolean(controlOf(name));

// What is left without a word; a GPU goes with its figures, a model with its config.
function without(plan, name) {
  const others = { gpu: ["gpu_figures"], model: ["config"] }[name] ?? [];
  return Object.fromEntries(Object.entries(plan).filter(([key]) => key !== name && !others.includes(key)));
}

// The server's sentence, less what buttons say and less lists that the control has anyway.
const shortened = (sentence) => {
  const [text, allowed] = sentence.split("; did you mean")[0].split("; allowed:");
  return allowed && allowed.length < 80 ? sentence : text;
};

// What was wrong with a word, and what could be meant: changes to the plan by what a button says.
function noteOf(error, name, value) {
  const known = isWord(name);
  const text = known ? shortened(error.message) : `“${name}” is not a key of a plan`;
  const instead = defaultOf(name);
  return {
    text: `${text}; ${known && instead !== null ? `${instead} is shown instead` : "it was left out"}.`,
    meant: error.suggestions.map((one) => ({
      text: one,
      changes: known ? { [name]: one } : { [one]: typed(value, controlOf(one)) },
    })),
  };
}

// Whose mistake it is: the word that the sentence is about, if the plan has it. Figures of a known GPU go alone.
function culprit(error, plan) {
  if (error.control === "gpu" && plan.gpu_figures && !error.message.startsWith("unknown GPU")) return "gpu_figures";
  return error.control in plan ? error.control : null;
}

// repaired(plan, ask) -> { plan, report, notes }: the same plan less what it cannot be asked with
export async function repaired(plan, ask) {
  const notes = [];
  let rest = plan;
  for (;;) {
    try {
      return { plan: rest, report: await ask(rest), notes };
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 400 || !Object.keys(rest).length) throw error;
      const name = notes.length < MISTAKES ? culprit(error, rest) : null;
      notes.push(
        name ? noteOf(error, name, rest[name]) : { text: `${error.message}; this is the default plan.`, meant: [] },
      );
      rest = name ? without(rest, name) : {};
    }
  }
}
