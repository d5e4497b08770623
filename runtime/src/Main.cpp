//===- Main.cpp - main() of a training executable -------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/common/Trainer.h"
#include <new>

using namespace mgq::rt;

/// Prints a fault on one line of standard error.
static int report(const char *text, int status) {
  printError("error: {}", text);
  return status;
}

int main(int argc, char **argv) {
  try {
    ParsedOptions parsed =
        parseOptions(argc, argv, mgq_program_table.compiler_version);
    if (parsed.exitStatus)
      return *parsed.exitStatus;
    catchInterrupts();
    return Trainer(mgq_program_table, parsed.options).run();
  } catch (const UsageError &error) {
    return report(error.what(), 2);
  } catch (const std::bad_alloc &) {
    return report("out of memory", 1);
  } catch (const std::exception &error) {
    return report(error.what(), 1);
  }
}
