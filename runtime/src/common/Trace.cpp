//===- Trace.cpp - What ran when ------------------------------------------===//

#include "runtime/src/common/Trace.h"
#include "runtime/include/rt.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

using namespace mgq::rt;

double mgq::rt::secondsNow() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static const char *phaseName(Phase phase) {
  static constexpr const char *names[] = {
      "load",      "count",      "forward",    "backward", "weight",
      "optimizer", "prepare",    "evaluate",   "send",     "recv",
      "wait",      "all_reduce", "all_gather", "exchange"};
  return names[static_cast<int>(phase)];
}

const char *mgq::rt::trafficName(int32_t traffic) {
  if (traffic == MGQ_TRAFFIC_PARAMETER)
    return "parameter";
  return traffic == MGQ_TRAFFIC_GRADIENT ? "gradient" : "activation";
}

double Trace::firstStart() const {
  uint64_t kept = std::min<uint64_t>(added, events.size());
  double first = HUGE_VAL;
  for (uint64_t i = 0; i < kept; ++i)
    first = std::min(first, events[i].start);
  return first;
}

std::string Trace::text(int32_t rank, double origin) const {
  std::string text =
      fmt::format(",\n{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": "
                  "{0}, \"tid\": 0, \"args\": {{\"name\": \"rank {0}\"}}}}",
                  rank);
  uint64_t kept = std::min<uint64_t>(added, events.size());
  for (uint64_t i = added - kept; i < added; ++i) {
    const Event &event = events[i % events.size()];
    fmt::format_to(
        std::back_inserter(text),
        ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"ts\": {:.3f}, "
        "\"dur\": {:.3f}, \"pid\": {}, \"tid\": 0, \"args\": {{\"step\": {}, "
        "\"micro_batch\": {}",
        nlohmann::json(event.name).dump(), phaseName(event.phase),
        (event.start - origin) * 1e6, event.seconds * 1e6, rank, event.step,
        event.microBatch);
    if (event.message.peer >= 0)
      fmt::format_to(std::back_inserter(text),
                     ", \"bytes\": {}, \"peer\": {}, \"traffic\": \"{}\"",
                     event.message.bytes, event.message.peer,
                     trafficName(event.message.traffic));
    text += "}}";
  }
  return text;
}

void mgq::rt::writeTrace(const std::string &path,
                         const std::vector<std::string> &ranks) {
  AtomicFile file(path);
  file.write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  bool first = true;
  for (const std::string &rank : ranks) {
    file.write(rank.data() + first, rank.size() - first); // No first comma.
    first = false;
  }
  file.write("\n]}\n");
  file.commit();
}
