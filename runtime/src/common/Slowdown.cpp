//===- Slowdown.cpp - Artificially slow stages ----------------------------===//

#include "runtime/src/common/Slowdown.h"
#include "runtime/src/common/Error.h"
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

using namespace mgq::rt;

/// The numbers of "op=1e-3,rank=1" by name, over the defaults in `values`.
static void parse(const std::string &all,
                  std::map<std::string, double> &values) {
  for (size_t at = 0; at <= all.size();) {
    size_t comma = std::min(all.find(',', at), all.size());
    std::string word = all.substr(at, comma - at);
    at = comma + 1;
    size_t equals = std::min(word.find('='), word.size());
    auto it = values.find(word.substr(0, equals));
    double value = -1;
    const char *end = word.data() + word.size();
    auto [stop, code] = std::from_chars(
        word.data() + std::min(equals + 1, word.size()), end, value);
    if (it == values.end() || code != std::errc() || stop != end ||
        !(value >= 0) || std::isinf(value))
      failUsage("MGQ_TEST_SLOW is '{}', expected op=SECONDS, sample=SECONDS, "
                "rank=NUMBER and factor=NUMBER, with commas",
                all);
    it->second = value;
  }
}

Slowdown::Slowdown(const RankView &view) {
  const char *given = getenv("MGQ_TEST_SLOW");
  if (!given || !*given)
    return;
  std::map<std::string, double> values = {
      {"op", 0}, {"sample", 0}, {"rank", -1}, {"factor", 1}};
  parse(given, values);
  seconds = values["op"] + values["sample"] * view.program.micro_batch_size;
  if (values["rank"] == view.index)
    seconds *= values["factor"];
}

void Slowdown::sleep() const {
  if (seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
