// Runs before the first paint, so that a remembered theme does not flash up late. No module: those are deferred.
try {
  const theme = localStorage.getItem("roundhouse.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is blocked: the system's theme it is.
}
