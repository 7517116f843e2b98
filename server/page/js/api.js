/* The server. Paths are relative to the page: a proxy may have the server under a path of its own. */
export const base = new URL('../../', import.meta.url);

const KEY = 'kvasir-key';
const places = () => [sessionStorage, localStorage]; /* until the tab is closed; for good */

export function key() {
  try {
    return places().map(p => p.getItem(KEY)).find(Boolean) || '';
  } catch {
    return '';
  }
}

export function setKey(value, remember) {
  try {
    for (const p of places()) p.removeItem(KEY);
    if (value) places()[Number(Boolean(remember))].setItem(KEY, value);
  } catch { /* without storage there is no key */ }
}

export class ApiError extends Error {
  constructor(error, status) {
    super(error.message);
    Object.assign(this, {type: error.type, code: error.code, param: error.param, status});
  }
}

/* In words, with the field and when to try again. */
function describe(error, wait) {
  const field = error.param ? ` (field ${error.param})` : '';
  return {...error, message: `${error.message}${field}${wait ? ` Try again in ${wait} s.` : ''}`};
}

async function ask(path, {method, body, signal} = {}) {
  const headers = body === undefined ? {} : {'Content-Type': 'application/json'};
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const response = await fetch(new URL(path, base), {method: method || (body === undefined ? 'GET' : 'POST'), headers,
    signal, body: body === undefined ? undefined : JSON.stringify(body)}).catch(error => {
    if (error.name === 'AbortError') throw error;
    throw new ApiError({message: 'The server cannot be reached.'}, 0);
  });
  if (response.ok) return response;
  let error = {message: `The server returned ${response.status}.`};
  try { error = JSON.parse(await response.text()).error || error; } catch { /* not JSON: a proxy's page */ }
  if (response.status === 401) dispatchEvent(new Event('kvasir-key'));
  throw new ApiError(describe(error, response.headers.get('Retry-After')), response.status);
}

/* -> the JSON, or, where it is none, the text */
export async function request(path, options) {
  const response = await ask(path, options);
  return response.headers.get('Content-Type')?.includes('json') ? response.json() : response.text();
}

/* Server-sent events, each given to onEvent as JSON; ends with [DONE]. */
export async function stream(path, body, {signal, onEvent}) {
  const reader = (await ask(path, {body, signal})).body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const {value, done} = await reader.read().catch(error => {
      if (error.name === 'AbortError') throw error;
      return {done: true};
    });
    if (done) throw new ApiError({message: 'The connection closed before the response was complete.'}, 0);
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (event === 'data: [DONE]') return;
      if (!event.startsWith('data: ')) continue;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new ApiError(describe(data.error), 0);
      onEvent(data);
    }
  }
}

export const models = async () => (await request('v1/models')).data;
export const props = model => request(model ? `props?model=${encodeURIComponent(model)}` : 'props');
