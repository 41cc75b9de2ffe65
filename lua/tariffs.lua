-- The tariffs of a call: a limiter's numbers, and in a reserve what one request costs there. Many charges share one.
--
-- 41 bytes each: kind B, precision B (sub-windows), blend B, queues B (whether requests may be held), dry run B; limit
-- I6 (units), window I6 (µs), size I6 (a bucket's burst in units, a sub-window's length in µs), queue I6 (µs, the longest
-- hold), cost I6 (units), asked I6 (units: the cost, with what the same request asked of the same key before).
-- Twin: `Tariff` in src/store/redis/call.rs.

local TARIFF = '>BBBBBI6I6I6I6I6I6'

-- The tariffs that are packed in an argument. An algorithm is made once it is asked for.
local function unpack_tariffs(packed)
  local tariffs, algorithms, at = {}, {}, 1
  while at <= #packed do
    local kind, precision, blend, queues, dry_run, limit, window, size, queue, cost, asked, next_at =
      unpack_struct(TARIFF, packed, at)
    algorithms[kind] = algorithms[kind] or algorithm(kind)
    tariffs[#tariffs + 1] = {
      algorithm = algorithms[kind], limit = limit, window = window, cost = cost, asked = asked, dry_run = dry_run == 1,
      precision = precision, blend = blend == 1, part = size,
      burst = size, queues = queues == 1, queue = queue,
    }
    at = next_at
  end
  return tariffs
end
