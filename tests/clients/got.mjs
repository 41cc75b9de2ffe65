// got, which waits as Retry-After says.

import got from 'got';

const start = performance.now();
for (let call = 0; call < 4; call += 1) {
  await got(process.argv[2], { timeout: { request: 10_000 } });
}
console.log((performance.now() - start) / 1000);
