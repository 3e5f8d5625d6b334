/** Keeps the newest text in view while the reader is at the end, and leaves a reader who has scrolled up alone. */

const NEAR = 48;

/**
 * @param {HTMLElement} scroller
 * @param {HTMLElement} content
 * @param {HTMLElement} jump button that leads back to the end
 * @returns {{toEnd: () => void}}
 */
export function followEnd(scroller, content, jump) {
  let following = true;
  let top = 0;
  const distance = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  const toEnd = () => {
    following = true;
    scroller.scrollTop = scroller.scrollHeight;
  };

  scroller.addEventListener(
    "scroll",
    () => {
      // Only the reader scrolls up; content that grows or shrinks moves the end instead.
      if (scroller.scrollTop < top && distance() > NEAR) following = false;
      if (distance() <= NEAR) following = true;
      top = scroller.scrollTop;
      jump.hidden = following;
    },
    { passive: true },
  );
  new ResizeObserver(() => {
    if (following) toEnd();
    jump.hidden = following || distance() <= NEAR;
  }).observe(content);
  jump.addEventListener("click", toEnd);
  return { toEnd };
}
