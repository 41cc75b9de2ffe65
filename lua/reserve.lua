-- Decides the requests of one call, in order. A request is admitted if each of its charges that is no dry run has room;
-- then all are charged (a dry run if it has room itself), else nothing.
--
-- KEYS     the limiters' keys, each once, those of sliding logs last
-- ARGV[1]  deadline, µs of this server's clock: a call that comes later changes nothing
-- ARGV[2]  how many keys are no sliding log's
-- ARGV[3]  tariffs, as tariffs.lua has them
-- ARGV[4]  requests: charges I2, times B (how often the same request comes in a row, 1 to 255), then for each charge
--          key I2 and tariff I2, counted from 1
-- Returns  { clock }, µs, if the deadline has passed, else { clock, admitted, states }: for each request a byte, how many
--          of its times are admitted (the first ones); for each key its state as it was before the call, of a sliding
--          log the excerpt that the numbers need, or nil.
-- Why atomic: what one request is told and what the next one finds is one state. Each key is read once and written once,
-- and nothing is written before all is judged, so that a call which fails has changed nothing.
-- Twin: src/store/redis/recount.rs, which finds from the returned states every number that the requests are told.

local deadline, fixed = tonumber(ARGV[1]), tonumber(ARGV[2])
local tariffs, requests = unpack_tariffs(ARGV[3]), { string.byte(ARGV[4], 1, -1) }

-- Read. The clock is read once: it runs on within a script.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
if clock > deadline then
  return { clock }
end
local states = fixed > 0 and redis.call('MGET', unpack(KEYS, 1, fixed)) or {}

-- Judge. A view is what a key's state is by now; a bucket that was not yet charged drains at the limit in force.
local views = {}
local looked, by = {}, {} -- of one request: the view that each charge is on, and its tariff
local admitted, at, length = {}, 1, #requests
while at < length do
  local last, times = at + 4 * (256 * requests[at] + requests[at + 1]), requests[at + 2]
  local charges, count, room = 0, 0, true
  for place = at + 3, last, 4 do
    local key = 256 * requests[place] + requests[place + 1]
    local tariff = tariffs[256 * requests[place + 2] + requests[place + 3]]
    local view = views[key]
    if not view or (view.limit and view.limit ~= tariff.limit and not view.changed) then
      view = tariff.algorithm.advance(states[key], tariff, clock, KEYS[key])
      views[key], view.tariff = view, tariff
    end
    charges = charges + 1
    looked[charges], by[charges] = view, tariff
  end
  while room and count < times do
    for charge = 1, charges do
      local tariff = by[charge]
      local asked = tariff.asked
      if asked > 0 and not tariff.dry_run and not tariff.algorithm.admits(looked[charge], tariff, asked) then
        room = false
        break
      end
    end
    for charge = 1, charges do
      local view, tariff = looked[charge], by[charge]
      local algorithm, cost = tariff.algorithm, tariff.cost
      if room and cost > 0 and (not tariff.dry_run or algorithm.admits(view, tariff, cost)) then
        algorithm.charge(view, tariff, cost)
      else
        if cost > 0 and view.set_back then
          algorithm.repair(view, tariff)
        end
        if algorithm.read then
          algorithm.read(view, tariff, cost)
        end
      end
    end
    if room then
      count = count + 1
    end
  end
  admitted[#admitted + 1] = count
  at = last + 3
end
for key = fixed + 1, #KEYS do
  local view = views[key]
  states[key] = view.tariff.algorithm.excerpt(view)
end

-- Write. Each algorithm writes a key's expiry where it writes its state.
for key = 1, #KEYS do
  local view = views[key]
  if view.changed then
    view.tariff.algorithm.write(view, KEYS[key], view.tariff)
  end
end
return { clock, string.char(unpack(admitted)), states }
