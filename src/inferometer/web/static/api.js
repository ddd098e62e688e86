// What the server answers. A mistake in the plan comes back as a Refused with the CLI's sentence and its control.
import { back, heard } from "./connection.js";

export class Refused extends Error {
  constructor(sentence, control, status, { suggestions, remedies } = {}) {
    super(sentence);
    this.control = control ?? null;
    this.status = status ?? null; // of the response, where there was one
    this.suggestions = suggestions ?? []; // names that are nearest to one that is not known
    this.remedies = remedies ?? []; // changes of the plan that were tried and work
  }
}

// A page with its report inside (analyze --html) asks no server.
const inside = document.getElementById("given");
export const given = inside ? JSON.parse(inside.textContent) : null;

const AWAY = [502, 503, 504]; // too busy, shutting down, or a proxy whose server is gone

// The response, however long the server was away.
async function response(path, options) {
  for (;;) {
    let why = "Connection lost";
    try {
      const reply = await fetch(path, options);
      heard(reply);
      if (!AWAY.includes(reply.status)) return reply;
      if (reply.status === 503) why = "The server is busy";
    } catch (error) {
      if (error.name === "AbortError") throw error;
    }
    await back(why);
    options?.signal?.throwIfAborted();
  }
}

async function answer(path, options) {
  const reply = await response(path, options);
  const text = await reply.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    throw new Refused(`the server's response is not JSON (status ${reply.status})`);
  }
  if (reply.ok) return data;
  throw new Refused(data?.error ?? `status ${reply.status}`, data?.control, reply.status, data ?? {});
}

export const get = (path) => answer(path);

export function post(path, body, signal) {
  return answer(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

const PATIENCE = 150; // ms after which a place says that its answer is on the way

// One question at a time, and only the newest waits: sliders ask as fast as answers come,
// each is shown, the last stays. `place` is where answers are shown: aria-busy while one takes long.
export function latest(ask, then, place = null) {
  let busy = false;
  let waiting = null;
  return async function next(...args) {
    if (busy) {
      waiting = args;
      return;
    }
    busy = true;
    const late = setTimeout(() => place?.setAttribute("aria-busy", "true"), PATIENCE);
    let result;
    try {
      result = { value: await ask(...args) };
    } catch (error) {
      result = { error };
    }
    busy = false;
    clearTimeout(late);
    place?.removeAttribute("aria-busy");
    const newer = waiting;
    waiting = null;
    if (newer) next(...newer);
    then(result, ...args);
  };
}

// A job runs on the server: stop() cancels it. onBegin(name) is told its name, by which `resumed` finds it again.
export const job = (path, body, onProgress, onBegin) => followed(post(path, body), onProgress, onBegin);

// The same job after a reload; the server keeps results for some hours, then it is Refused with status 404.
export const resumed = (name, onProgress) => followed(Promise.resolve({ job: name }), onProgress);

function followed(begun, onProgress, onBegin = () => null) {
  let path = null;
  let stopped = false;
  const cancel = () => fetch(path, { method: "DELETE" }).catch(() => null);
  const done = (async () => {
    const { job: name } = await begun;
    path = `/api/jobs/${encodeURIComponent(name)}`;
    onBegin(name);
    if (stopped) cancel();
    for (let wait = 60; ; wait = Math.min(wait * 1.3, 500)) {
      const now = await get(path);
      if (now.state === "done") return now.result;
      if (now.state === "cancelled") throw new Refused("cancelled");
      if (now.state === "failed") throw new Refused(now.error ?? "the job failed", now.control);
      onProgress(now.progress ?? 0, now.words);
      await new Promise((resume) => setTimeout(resume, wait));
    }
  })();
  return {
    done,
    stop() {
      stopped = true;
      if (path !== null) cancel();
    },
  };
}
