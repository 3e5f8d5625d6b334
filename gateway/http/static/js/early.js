// Runs before the first paint, so that neither another theme nor another language flashes up. No module: those are
// deferred.
{
  const root = document.documentElement;
  /** @param {string} name */
  const kept = (name) => {
    try {
      return localStorage.getItem(`roundhouse.${name}`) ?? "";
    } catch {
      return ""; // storage is blocked: what the system says counts
    }
  };
  const theme = kept("theme");
  if (theme) root.dataset.theme = theme;

  // A page with catalogues is there in the languages that it names; English is in the page itself.
  const { catalogue = "", languages = "en" } = root.dataset;
  const wanted = [kept("language"), ...navigator.languages].map((tag) => tag.split("-")[0].toLowerCase());
  const language = wanted.find((tag) => languages.split(" ").includes(tag)) ?? "en";
  if (language !== "en") {
    root.lang = language;
    root.dataset.translating = "";
    const { src } = /** @type {HTMLScriptElement} */ (document.currentScript);
    for (const name of catalogue.split(" ")) {
      const table = document.createElement("link");
      table.rel = "modulepreload";
      table.href = new URL(`../languages/${language}/${name}.js`, src).href;
      document.head.append(table);
    }
  }
}
