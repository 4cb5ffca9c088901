# One program of all C++ tests; starting LibTorch costs too much to list or run
# them one by one. Suites named *Timing* run alone, all others in shards.
find_package(GTest REQUIRED)
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS tests/*.cpp)
list(FILTER test_sources EXCLUDE REGEX "/tests/(install|fuzz)/")
if(test_sources)
  add_executable(luna_tests ${test_sources})
  target_include_directories(luna_tests PRIVATE tests src)
  target_link_libraries(luna_tests PRIVATE luna_linked
    Highway::hwy fmt::fmt-header-only nlohmann_json::nlohmann_json
    GTest::gtest GTest::gtest_main)
  set_target_properties(luna_tests PROPERTIES BUILD_RPATH "$ORIGIN")
  # Tests are compiled to be run once.
  target_compile_options(luna_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  if(LUNA_PCH)
    target_precompile_headers(luna_tests PRIVATE ${LUNA_PCH_HEADERS})
  endif()
  # Sanitizers: libtorch leaks by design and defines some symbols twice.
  set(test_environment OMP_WAIT_POLICY=passive
    LUNA_SOURCE_DIR=${CMAKE_SOURCE_DIR} LUNA_PROGRAM=$<TARGET_FILE_DIR:luna>/luna
    ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0
    UBSAN_OPTIONS=print_stacktrace=1)
  math(EXPR last_shard "${LUNA_TEST_SHARDS} - 1")
  foreach(shard RANGE ${last_shard})
    add_test(NAME cpp.${shard}
      COMMAND luna_tests --gtest_brief=1 --gtest_filter=-*Timing*)
    set_tests_properties(cpp.${shard} PROPERTIES TIMEOUT 1200
      ENVIRONMENT "${test_environment};GTEST_TOTAL_SHARDS=${LUNA_TEST_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
  # What Highway compiles for other instruction sets than this machine's best.
  set(other_isas scalar)
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo avx2_flags REGEX "^flags.* avx2( |$)" LIMIT_COUNT 1)
    if(avx2_flags)
      list(PREPEND other_isas avx2)
    endif()
  endif()
  foreach(isa IN LISTS other_isas)
    add_test(NAME cpp.${isa}
      COMMAND luna_tests --gtest_brief=1 --gtest_filter=*/cpu_Float)
    set_tests_properties(cpp.${isa} PROPERTIES TIMEOUT 600
      ENVIRONMENT "${test_environment};LUNA_ISA=${isa}")
  endforeach()
  if(NOT LUNA_SANITIZE)
    add_test(NAME cpp.timing
      COMMAND luna_tests --gtest_brief=1 --gtest_filter=*Timing*)
    set_tests_properties(cpp.timing PROPERTIES RUN_SERIAL ON TIMEOUT 600
      ENVIRONMENT "${test_environment}")
  endif()
endif()

if(LUNA_SANITIZE)
  return() # Python and installed trees are tested by the release build
endif()

set(test_python "${LUNA_PYTHON}")
if(NOT test_python)
  set(test_python "${CMAKE_SOURCE_DIR}/.venv/bin/python")
endif()
file(GLOB_RECURSE python_tests CONFIGURE_DEPENDS tests/python/test_*.py)
if(python_tests)
  add_test(NAME python
    COMMAND ${test_python} -m pytest -rs --tb=short --color=no -p no:cacheprovider
            ${CMAKE_SOURCE_DIR}/tests/python
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(python PROPERTIES TIMEOUT 1200
    ENVIRONMENT "PYTHONPATH=${CMAKE_SOURCE_DIR}/python;LUNA_LIBRARY=$<TARGET_FILE:luna>;LUNA_PROGRAM=$<TARGET_FILE_DIR:luna>/luna;OMP_WAIT_POLICY=passive;TORCHINDUCTOR_CACHE_DIR=${CMAKE_BINARY_DIR}/torch-compile")
endif()

add_test(NAME install
  COMMAND ${CMAKE_SOURCE_DIR}/tests/install/run.sh ${CMAKE_BINARY_DIR}
          ${LibTorch_ROOT})
set_tests_properties(install PROPERTIES TIMEOUT 600)
file(GLOB python_package CONFIGURE_DEPENDS python/luna/__init__.py)
if(python_package)
  add_test(NAME wheel
    COMMAND ${CMAKE_SOURCE_DIR}/tests/install/wheel.sh ${test_python}
            ${LibTorch_ROOT})
  set_tests_properties(wheel PROPERTIES TIMEOUT 1200)
endif()
