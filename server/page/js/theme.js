/* Before the first paint, so that a chosen theme does not flash. Not a module: those run later. */
try {
  const theme = JSON.parse(localStorage.getItem('kvasir-theme'));
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* a browser that forbids storage has the system's theme */ }
