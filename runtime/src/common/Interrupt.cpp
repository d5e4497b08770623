//===- Interrupt.cpp - Signals that end a run -----------------------------===//

#include "runtime/src/common/Interrupt.h"
#include <csignal>

using namespace mgq::rt;

// Ranks of one process all read it.
static volatile sig_atomic_t caughtSignal = 0;

void mgq::rt::catchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int number) { caughtSignal = number; };
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Faults of files come back as errno, with a message, not as a signal.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

int mgq::rt::interruptSignal() { return caughtSignal; }
