-- sliding-window: counts of `precision` sub-windows and of the one before them, which fades as it leaves the window.
--
-- State, 8 + 6 (precision + 1) bytes: newest I8 (number of the newest sub-window, from the epoch), then I6 units of it
-- and of those before it, newest first. The key expires when the newest count has left the window.
-- Twin: src/limit/sliding_window.rs, with the same steps in the same order.

-- The layout of a state, by its precision.
local function layout(precision)
  return '>I8' .. string.rep('I6', precision + 1)
end

-- The units of the sub-window `age` before that of the view. `stored` has the newest number first, then the units.
local function count(view, age)
  if age < view.shift then
    return 0
  end
  return view.stored[age - view.shift + 2] or 0
end

-- A look at a state, or at none (`raw` is false, or is no state), with the clock at `clock`.
local function advance(raw, policy, clock)
  local part, precision = policy.part, policy.precision
  local stored, renewed = false, true
  if raw and #raw == 14 + 6 * precision then
    stored = { unpack_struct(layout(precision), raw) }
    stored[precision + 3] = nil -- where the next would begin
    if stored[1] >= EXACT then
      stored = false
    end
  end
  local view = {
    now = clock, newest = floor(clock / part), shift = 0, recent = 0, oldest = 0, set_back = false,
    stored = stored,
    missing = not stored,
    renewed = false, -- whether all is to be written
    touched = false, -- else the age of the one count that is
    changed = false,
  }
  if not stored then
    view.stored, view.renewed = { view.newest }, true
    return view
  end
  local begins = stored[1] * part
  view.set_back = begins - clock > policy.window
  if not view.set_back and stored[1] > view.newest then
    view.newest, view.now = stored[1], begins
  elseif not view.set_back then
    view.shift = view.newest - stored[1]
  end
  for age = view.shift, precision - 1 do
    view.recent = view.recent + stored[age - view.shift + 2]
  end
  view.oldest = count(view, precision)
  return view
end

local function used(view, policy)
  if not policy.blend or view.oldest == 0 then
    return view.recent + view.oldest
  end
  local elapsed = view.now - view.newest * policy.part
  return view.recent + up(muldiv(policy.part - elapsed, view.oldest, policy.part))
end

local function admits(view, policy, cost)
  return used(view, policy) + cost <= policy.limit
end

-- Moves the counts to where the view sees them.
local function shift(view, policy)
  if view.shift == 0 and not view.set_back then
    return
  end
  local counts = { view.newest }
  for age = 0, policy.precision do
    counts[age + 2] = count(view, age)
  end
  view.stored, view.shift, view.set_back, view.renewed = counts, 0, false, true
end

local function charge(view, policy, cost)
  shift(view, policy)
  view.stored[2] = (view.stored[2] or 0) + cost
  view.recent = view.recent + cost
  view.touched, view.changed = 0, true
end

-- What a look found of a clock that was set back is to be written.
local function repair(view, policy)
  if view.set_back then
    shift(view, policy)
    view.changed = true
  end
end

local RECEIPT = '>I8I6' -- number of the sub-window, cost

-- Gives back what is still owed of the charge whose receipt is at `at`; returns where the next one is.
local function refund(view, policy, receipts, at)
  local number, cost, next_at = unpack_struct(RECEIPT, receipts, at)
  if view.missing then
    return next_at
  end
  repair(view, policy)
  local age = view.newest - number
  if number > view.stored[1] or age < 0 or age > policy.precision then
    return next_at
  end
  shift(view, policy)
  local before = count(view, age)
  view.stored[age + 2] = max(before - cost, 0)
  if age < policy.precision then
    view.recent = view.recent - before + view.stored[age + 2]
  else
    view.oldest = view.stored[age + 2]
  end
  if view.touched and view.touched ~= age then
    view.renewed = true
  end
  view.touched, view.changed = age, true
  return next_at
end

-- Within a sub-window the expiry stays: SETRANGE keeps it.
local function write(view, key, policy)
  if not view.renewed then
    redis.call('SETRANGE', key, 8 + 6 * view.touched, pack_struct('>I6', view.stored[view.touched + 2]))
    return
  end
  local stored, precision = view.stored, policy.precision
  for age = 0, precision do
    stored[age + 2] = stored[age + 2] or 0
  end
  local state = pack_struct(layout(precision), unpack(stored, 1, precision + 2))
  redis.call('SET', key, state, 'PXAT', lasting((view.newest + precision + 1) * policy.part))
end

return { advance = advance, admits = admits, charge = charge, repair = repair, refund = refund, write = write }
