//===- Streams.h - What host programs with streams share --------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_PROGRAMS_STREAMS_H
#define MGQ_TEST_DEVICE_PROGRAMS_STREAMS_H

#include "test/device/programs/Driver.h"
#include <gmock/gmock.h>

namespace mgq::scenario {

constexpr int faultStatus = 86;
constexpr size_t count = 4096, bytes = count * sizeof(float);

/// Whether the environment asks a scenario for this fault.
inline bool has(const char *fault) {
  const char *seeded = std::getenv("FAULT");
  return seeded && std::string(seeded) == fault;
}

/// y = a x on a stream; of the twin "faults".
struct Scale {
  Module module{"faults"};
  CUfunction function = module.function("scale");

  void operator()(const Memory<float> &x, const Memory<float> &y, float a,
                  Stream &stream) const {
    CHECK_OK(launch(function, unsigned(x.count / 256), 256, stream.handle,
                    x.address, y.address, a, int(x.count)));
  }
};

inline bool isFilled(const Memory<float> &memory, float value) {
  for (float each : memory.read())
    if (each != value)
      return false;
  return true;
}

/// Without a fault a scenario is silent; with it, it says `text`, whatever the
/// delays.
inline void check(const std::string &scenario, const std::string &fault,
                  const std::string &text, const Words &more = {}) {
  for (const char *seed : {"1", "2", "3"}) {
    Words words = more;
    words.push_back(std::string("MGQ_FAKE_SEED=") + seed);
    Result right = run(scenario, words);
    EXPECT_EQ(right.status, 0) << scenario << ": " << right.output;
    EXPECT_EQ(right.output, "");
    words.push_back("FAULT=" + fault);
    Result wrong = run(scenario, words);
    EXPECT_EQ(wrong.status, faultStatus) << fault << ": " << wrong.output;
    EXPECT_THAT(wrong.output, testing::HasSubstr(text));
  }
}

} // namespace mgq::scenario

#endif // MGQ_TEST_DEVICE_PROGRAMS_STREAMS_H
