import {el} from './dom.js';
export const mountCache = (node, {api}) => ({
  async show() { node.replaceChildren(el('pre', null, JSON.stringify(await api.request('cache_tree'), null, 1))); },
  hide() {},
});
