//===- HostDevice.cpp - Layer functions on the host -----------------------===//

#include "runtime/src/common/Device.h"
#include "runtime/src/local/Executor.h"
#include <cstdlib>
#include <new>

using namespace mgq::rt;

namespace {
class HostDevice : public Device {
public:
  void copy(void *to, const void *from, int64_t bytes) override {
    memcpy(to, from, bytes);
  }
  void zero(void *to, int64_t bytes) override { memset(to, 0, bytes); }
  std::byte *beginWrite(void *to, int64_t) override {
    return static_cast<std::byte *>(to);
  }
  void endWrite() override {}
  void read(void *to, const void *from, int64_t bytes) override {
    memcpy(to, from, bytes);
  }
  void readNow(void *to, const void *from, int64_t bytes) override {
    memcpy(to, from, bytes);
  }
  void synchronize() override {}
  void enterCall(const char *) override {}
  void leaveCall(const char *name) override { checkIndexError(name); }

protected:
  void *allocateHost(int64_t bytes) override {
    void *memory = malloc(bytes);
    if (!memory)
      throw std::bad_alloc();
    return memory;
  }
  void freeHost(void *memory) override { free(memory); }
};
} // namespace

Device &mgq::rt::hostDevice() {
  static HostDevice device;
  return device;
}
