//===- Main.cpp - main() of a training executable -------------------------===//

#include "runtime/src/common/Error.h"
#include "runtime/src/common/Interrupt.h"
#include "runtime/src/local/Launch.h"
#include <new>

using namespace mgq::rt;

int main(int argc, char **argv) {
  try {
    ParsedOptions parsed =
        parseOptions(argc, argv, mgq_program_table.compiler_version);
    if (parsed.exitStatus)
      return *parsed.exitStatus;
    catchInterrupts();
    return launch(mgq_program_table, parsed.options);
  } catch (const UsageError &error) {
    return reportFault(error.what(), 2);
  } catch (const std::bad_alloc &) {
    return reportFault("out of memory", 1);
  } catch (const std::exception &error) {
    return reportFault(error.what(), 1);
  }
}
