-- Exact products and quotients of whole numbers, as far as a double holds them: below 2^53.
--
-- A product of two such numbers is not exact, so that `a * b / c` is wrong in its last digits where a limit or a window
-- is large: `muldiv` divides limb by limb. `math.floor(a / b)`, `math.ceil(a / b)` and `a % b` are exact below 2^53.
-- Twin: src/limit/arithmetic.rs.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack_struct, unpack_struct = struct.pack, struct.unpack

-- From here on a number may have lost its last digits.
local EXACT = 9007199254740992 -- 2^53

-- `q, r` with `a * b = q * c + r` and `r < c`. For a, c < 2^42 and b < 2^53: what may be large (usage, elapsed time) is
-- always `b`. Exact while q < 2^53; a larger q says that it is large.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local q = floor(product / c)
    return q, product - q * c
  end
  local q, r, unit = 0, 0, 1125899906842624 -- limbs of 10 bits, the first of them counts in units of 2^50
  for _ = 1, 6 do
    local limb = floor(b / unit)
    b = b - limb * unit
    unit = unit / 1024
    r = r * 1024 + a * limb -- below 2^52 + 2^52
    local d = floor(r / c)
    r = r - d * c
    q = q * 1024 + d
  end
  return q, r
end

-- A quotient with its rest, rounded up.
local function up(q, r)
  if r > 0 then
    return q + 1
  end
  return q
end

-- The expiry of a key, in milliseconds, that lasts until an instant in microseconds.
local function lasting(instant)
  return ceil(instant / 1000)
end
