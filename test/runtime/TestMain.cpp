//===- TestMain.cpp - main() of unit tests, instead of the runtime's ------===//

#include <gtest/gtest.h>

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
