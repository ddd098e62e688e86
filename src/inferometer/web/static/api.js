// What the server answers. A mistake in the plan comes back as a Refused with the CLI's sentence and its control.

export class Refused extends Error {
  constructor(sentence, control, status) {
    super(sentence);
    this.control = control ?? null;
    this.status = status ?? null; // of the response, where there was one
  }
}

// A page with its report inside (analyze --html) asks no server.
const inside = document.getElementById("given");
export const given = inside ? JSON.parse(inside.textContent) : null;

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer; is `inferometer web` still running?");
  }
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    throw new Refused(`the server's answer is no JSON (status ${response.status})`);
  }
  if (!response.ok)
    throw new Refused(data?.error ?? data?.detail ?? `status ${response.status}`, data?.control, response.status);
  return data;
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

// One question at a time, and only the newest waits: sliders ask as fast as answers come,
// each is shown, the last stays.
export function latest(ask, then) {
  let busy = false;
  let waiting = null;
  return async function next(...args) {
    if (busy) {
      waiting = args;
      return;
    }
    busy = true;
    let result;
    try {
      result = { value: await ask(...args) };
    } catch (error) {
      result = { error };
    }
    busy = false;
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
