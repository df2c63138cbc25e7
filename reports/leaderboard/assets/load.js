'use strict';
// Unpacks the page's script and its data. Only a script with the hash in the page's policy can run.

const unpacked = (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
};
(async () => {
  const script = document.createElement('script');
  script.textContent = await unpacked('code');
  document.body.append(script);
  start(await unpacked('data'));
})().catch((error) => {
  document.getElementById('summary').append(` This browser can’t unpack the page’s data (${error.message}). With JavaScript off it shows a plain table.`);
});
