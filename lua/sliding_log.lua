-- sliding-log: every charge with its instant, each forgotten a window later. Exact, and as large as the limit.
--
-- State, 32 + 12 an entry: a head of first I4 (place of the oldest entry that has not aged out), count I4 (entries, those
-- before `first` among them), empty I4 (entries from `first` on that have no units), used I4 (units from `first` on),
-- expires I8 (µs, when the key expires), filled I8 (µs, instant of the newest entry with units); then the entries, sorted
-- by time, one an instant: at I8 (µs), units I4.
-- An admission appends one entry and rewrites the head, whatever the size; a short log is read and written in one piece.
-- What has aged out or is empty stays, until it is the larger part. The key expires two windows after an entry, which is told anew when that is less than one.
-- Twin: src/limit/sliding_log.rs, with the same steps in the same order.

local HEAD, ENTRY = '>I4I4I4I4I8I8', '>I8I4'
local HEAD_AND_ENTRY = '>I4I4I4I4I8I8I8I4'

-- A log of fewer entries is left as it is.
local SMALL = 32

-- The last byte of a log that is short: the head and 16 entries.
local SHORT = 223

-- The bytes of the entries from place `first` up to `last`.
local function range(key, first, last)
  return redis.call('GETRANGE', key, 32 + 12 * first, 43 + 12 * last)
end

-- The instant and the units of the stored entry at place `i`. Entries are read a few at a time, and more each time:
-- those from `i` on, or those up to `i` if the walk goes `down`.
local function entry(view, i, down)
  if i < view.base or i >= view.base + view.read then
    view.batch = min(2 * view.batch, 64)
    view.base = down and max(i - view.batch + 1, 0) or i
    local raw = range(view.key, view.base, view.base + view.batch - 1)
    view.read = #raw / 12
    view.entries = { unpack_struct('>' .. string.rep('I8I4', view.read), raw) }
  end
  local place = 2 * (i - view.base)
  return view.entries[place + 1], view.entries[place + 2]
end

-- A look at the log of `key`, or at none, with the clock at `clock`.
local function advance(_, policy, clock, key)
  local view = {
    key = key, now = clock, first = 0, count = 0, empty = 0, used = 0, expires = 0, filled = 0,
    newest = false, units = 0, -- the newest entry; its instant, as all in a view but those read, is moved `back`
    back = 0, set_back = false,
    stored = 0, -- entries that are stored; none, unless one of them counts
    before = 0, -- their units
    last = false, last_units = 0, last_filled = 0, -- the newest entry and `filled` as they are stored
    base = 0, read = 0, batch = 2, entries = false,
    needs = {}, -- numbers of units, from the oldest on, whose instants the verdicts will tell
    whole = false, -- all bytes of a short log
    changes = false, -- new units of entries, by place
    changed = false,
  }
  local start = redis.pcall('GETRANGE', key, 0, SHORT)
  if type(start) ~= 'string' or #start < 44 then
    return view
  end
  local first, count, empty, used, expires, filled, at, units = unpack_struct(HEAD_AND_ENTRY, start)
  local whole = #start == 32 + 12 * count
  local last = count > first and (whole and string.sub(start, -12) or range(key, count - 1, count)) or ''
  if #last ~= 12 then
    return view
  end
  if first == 0 then
    view.read, view.entries = 1, { at, units }
  end
  local newest, newest_units = unpack_struct(ENTRY, last)
  local ahead = newest - clock
  if ahead > policy.window then
    view.back, view.set_back = ahead, true
  end
  view.now = max(clock, newest - view.back)
  if newest - view.back + policy.window <= view.now then
    return view
  end
  at, units = entry(view, first)
  while at - view.back + policy.window <= view.now do
    first, used = first + 1, used - units
    if units == 0 then
      empty = empty - 1
    end
    at, units = entry(view, first)
  end
  view.first, view.count, view.stored, view.empty = first, count, count, empty
  view.whole = whole and start
  view.used, view.before, view.expires = used, used, expires
  view.last, view.last_units, view.last_filled = newest, newest_units, filled
  view.newest, view.units, view.filled = newest - view.back, newest_units, filled - view.back
  return view
end

local function admits(view, policy, cost)
  return view.used + cost <= policy.limit
end

-- The instants that the verdict on a request will tell that is not charged: of `next`, and of `retry`.
local function read(view, policy, cost)
  local over = view.used - policy.limit
  view.needs[max(over + 1, 1)] = true
  if over + cost > 0 and cost <= policy.limit then
    view.needs[over + cost] = true
  end
end

local function charge(view, _, cost)
  view.needs[1] = true
  if view.newest == view.now then
    if view.units == 0 then
      view.empty = view.empty - 1
    end
    view.units = view.units + cost
  else
    -- An empty newest entry gives its place up.
    if view.newest and view.units == 0 then
      view.empty = view.empty - 1
    else
      view.count = view.count + 1
    end
    view.newest, view.units = view.now, cost
  end
  view.used, view.filled, view.changed = view.used + cost, view.now, true
end

-- What a look found of a clock that was set back is to be written.
local function repair(view)
  if view.set_back then
    view.changed = true
  end
end

-- The place of the entry with this instant, if it is there and has not aged out.
local function find(view, at)
  local low, high = view.first, view.stored - 1
  while low <= high do
    local middle = floor((low + high) / 2)
    local found = unpack_struct(ENTRY, range(view.key, middle, middle))
    if found == at then
      return middle
    elseif found < at then
      low = middle + 1
    else
      high = middle - 1
    end
  end
end

-- The units of a stored entry, as they are by now.
local function units_at(view, i)
  if i == view.stored - 1 then
    return view.units
  end
  local _, units = entry(view, i, true)
  return view.changes and view.changes[i] or units
end

local RECEIPT = '>I8I6' -- instant (µs), cost

-- Gives back what is still owed of the charge whose receipt is at `from`; returns where the next one is. An entry that
-- has no units then stays until it ages out.
local function refund(view, _, receipts, from)
  local at, cost, next_at = unpack_struct(RECEIPT, receipts, from)
  repair(view)
  local i = find(view, at + view.back)
  local given = i and min(cost, units_at(view, i)) or 0
  if given == 0 then
    return next_at
  end
  local units = units_at(view, i) - given
  if i == view.stored - 1 then
    view.units = units
  else
    view.changes = view.changes or {}
    view.changes[i] = units
  end
  view.used, view.changed = view.used - given, true
  if units == 0 then
    view.empty = view.empty + 1
    if at == view.filled then
      while i > view.first and units_at(view, i) == 0 do
        i = i - 1
      end
      view.filled = entry(view, i, true) - view.back
    end
  end
  return next_at
end

-- Of the log as it was before the call, what the verdicts need: the entries at which as many units are reached as they
-- ask for, each with all units that came after the one before; the newest entry with units, with the rest; and the
-- newest, if it has none. Of a short log all entries. Instants as they are stored. False if no entry counts.
local function excerpt(view)
  if view.stored == 0 then
    return false
  end
  if view.whole then
    return string.sub(view.whole, 33 + 12 * view.first)
  end
  local needs = {}
  for units in pairs(view.needs) do
    if units <= view.before then
      needs[#needs + 1] = units
    end
  end
  table.sort(needs)
  -- Walk from the nearer end: the older half from the oldest entry on, the newer half from the newest entry back.
  local low, high, found = 1, #needs, {}
  local i, reached, at, units = view.first, 0, 0, 0
  while low <= high and 2 * needs[low] <= view.before do
    while reached < needs[low] do
      at, units = entry(view, i)
      i, reached = i + 1, reached + units
    end
    found[low], low = { at, reached }, low + 1
  end
  i, reached = view.stored - 1, view.before
  while high >= low do
    at, units = entry(view, i, true)
    while reached - units >= needs[high] do
      i, reached = i - 1, reached - units
      at, units = entry(view, i, true)
    end
    found[high], high = { at, reached }, high - 1
  end
  local parts, told = {}, 0
  for n = 1, #found do
    at, reached = found[n][1], found[n][2]
    if reached > told then
      parts[#parts + 1], told = pack_struct(ENTRY, at, reached - told), reached
    end
  end
  if told < view.before then
    parts[#parts + 1] = pack_struct(ENTRY, view.last_filled, view.before - told)
  end
  if view.last_units == 0 then
    parts[#parts + 1] = pack_struct(ENTRY, view.last, 0)
  end
  return table.concat(parts)
end

local function head(view, first, count, empty)
  return pack_struct(HEAD, first, count, empty, view.used, view.expires, view.filled)
end

-- The bytes of all entries that count and have units, but for the newest, and how many they are.
local function live(view)
  local last = view.count - 2
  if last < view.first then
    return '', 0
  end
  if view.empty == 0 and view.back == 0 and not view.changes then
    return range(view.key, view.first, last), last - view.first + 1
  end
  local parts = {}
  for i = view.first, last do
    local at, units = entry(view, i)
    units = view.changes and view.changes[i] or units
    if units > 0 then
      parts[#parts + 1] = pack_struct(ENTRY, at - view.back, units)
    end
  end
  return table.concat(parts), #parts
end

local function write(view, key, policy)
  local newest = pack_struct(ENTRY, view.newest, view.units)
  local waste = view.first + view.empty
  if view.stored == 0 or view.set_back or (view.count > SMALL and 2 * waste > view.count) then
    local entries, count = live(view)
    local empty = view.units == 0 and 1 or 0
    view.expires = view.newest + 2 * policy.window
    local state = head(view, 0, count + 1, empty) .. entries .. newest
    redis.call('SET', key, state, 'PXAT', lasting(view.expires))
    return
  end
  local renewed = view.newest + policy.window > view.expires
  if renewed then
    view.expires = view.newest + 2 * policy.window
  end
  local changed = head(view, view.first, view.count, view.empty)
  if view.whole and not view.changes then
    redis.call('SETRANGE', key, 0, changed .. string.sub(view.whole, 33, 20 + 12 * view.count) .. newest)
  else
    redis.call('SETRANGE', key, 0, changed)
    redis.call('SETRANGE', key, 20 + 12 * view.count, newest)
    for i, units in pairs(view.changes or {}) do
      redis.call('SETRANGE', key, 40 + 12 * i, pack_struct('>I4', units))
    end
  end
  if renewed then
    redis.call('PEXPIREAT', key, lasting(view.expires))
  end
end

return {
  advance = advance, admits = admits, read = read, charge = charge, repair = repair, refund = refund,
  excerpt = excerpt, write = write,
}
