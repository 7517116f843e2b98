import {iconButton, toast} from './dom.js';
export const determinismButton = (message, {api}) => iconButton('proof', 'Determinism', async () => {
  const r = await api.request('v1/chat/completions', {body: {...message.request, stream: false, stream_options: undefined}});
  toast(r.choices[0].message.content === message.content ? 'The same.' : 'It differs.');
});
