//===- Trace.cpp - What ran when ------------------------------------------===//

#include "runtime/src/common/Trace.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

using namespace mgq::rt;

double mgq::rt::secondsNow() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static const char *phaseName(Phase phase) {
  static constexpr const char *names[] = {"count",     "forward", "backward",
                                          "optimizer", "prepare", "evaluate"};
  return names[static_cast<int>(phase)];
}

void Trace::write(const std::string &path, int rank) const {
  AtomicFile file(path);
  file.write(
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                  "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": "
                  "{0}, \"tid\": 0, \"args\": {{\"name\": \"rank {0}\"}}}}",
                  rank));
  uint64_t kept = std::min<uint64_t>(added, events.size());
  double origin = kept ? events[(added - kept) % events.size()].start : 0;
  for (uint64_t i = added - kept; i < added; ++i)
    origin = std::min(origin, events[i % events.size()].start);
  for (uint64_t i = added - kept; i < added; ++i) {
    const Event &event = events[i % events.size()];
    file.write(fmt::format(
        ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"ts\": {:.3f}, "
        "\"dur\": {:.3f}, \"pid\": {}, \"tid\": 0, \"args\": {{\"step\": {}, "
        "\"micro_batch\": {}}}}}",
        nlohmann::json(event.name).dump(), phaseName(event.phase),
        (event.start - origin) * 1e6, event.seconds * 1e6, rank, event.step,
        event.microBatch));
  }
  file.write("\n]}\n");
  file.commit();
}
