-- wrk: POSTs the file $WRK_BODY with the headers of $WRK_HEADERS ("Name: value" lines); prints one JSON line at the end.

wrk.method = "POST"
local file = assert(io.open(os.getenv("WRK_BODY"), "rb"))
wrk.body = file:read("*a")
file:close()
for name, value in string.gmatch(os.getenv("WRK_HEADERS"), "([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    '{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"errors":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), failed))
end
