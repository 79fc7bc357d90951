// What is asked of the scheduler: with the token of whoever looks, below whatever path serves us.

const BASE = new URL('../api/v1/', document.baseURI);
const KEPT = 'nanogpu-token';

/** The scheduler's no, in its own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** The namespace of a service account, as its token says it; a hint of where to look, no more. */
export function namespaceOfToken() {
  try {
    const part = token.get().split('.')[1].replace(/-/g, '+').replace(/_/g, '/');
    return JSON.parse(atob(part))['kubernetes.io'].namespace ?? null;
  } catch {
    return null;
  }
}

async function ask(path, query, signal) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value) url.searchParams.set(name, value);
  }
  const headers = token.get() ? { authorization: `Bearer ${token.get()}` } : {};
  const answer = await fetch(url, { headers, signal, cache: 'no-store', credentials: 'omit' });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error ?? `the scheduler answered with status ${answer.status}`);
}

export const get = async (path, query) => (await ask(path, query)).json();

export const why = (namespace, pod) => get(`why/${encodeURIComponent(namespace)}/${encodeURIComponent(pod)}`);

/**
 * Reads the stream of changes until it ends, with `heard` for every message. The browser's own
 * EventSource cannot send a token.
 */
export async function listen(query, signal, heard) {
  const answer = await ask('events', query, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const messages = text.split('\n\n');
    text = messages.pop();
    for (const message of messages) {
      const event = /^event: (.*)$/m.exec(message);
      if (event) heard(event[1]);
    }
  }
}
