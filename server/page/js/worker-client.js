/* Jobs for worker.js, one after the other; one that takes too long ends with its worker. */
const jobs = [];
let worker = null, now = null;

function end(out) {
  clearTimeout(now.timer);
  now.done(out);
  now = null;
  next();
}

function next() {
  if (now || !(now = jobs.shift())) return;
  if (!now.wanted()) return end(null);
  if (!worker) {
    worker = new Worker(new URL('worker.js', import.meta.url));
    worker.onerror = () => now && end(null);
    worker.onmessage = ({data}) => {
      if (data !== 'begun') return end(data.out);
      now.timer = setTimeout(() => {
        worker.terminate();
        worker = null;
        end(null);
      }, now.ms);
    };
  }
  worker.postMessage({kind: now.kind, job: now.job});
}

/* -> what worker.js makes of the job; null after `ms`, or where it is no longer wanted when its turn comes. */
export const tried = (kind, job, ms, wanted = () => true) => new Promise(done => {
  jobs.push({kind, job, ms, wanted, done});
  queueMicrotask(next); /* its place is on the page by then */
});
