/* The widget manager speaks to MathJax 2 (MathJax.Hub.Queue); the book loads MathJax 3. Translate the one call it makes. */
(function () {
  const hub = {
    Queue(task) {
      const element = task[2];
      const mathjax = window.MathJax;
      if (element && mathjax.startup && mathjax.startup.promise) {
        mathjax.startup.promise = mathjax.startup.promise.then(() => mathjax.typesetPromise([element]));
      }
    },
  };
  function dress(mathjax) {
    if (mathjax && !mathjax.Hub) {
      mathjax.Hub = hub;
    }
    return mathjax;
  }
  let current = dress(window.MathJax);
  Object.defineProperty(window, "MathJax", {
    configurable: true,
    get: () => current,
    set: (value) => {
      current = dress(value);
    },
  });
})();
