# luna_commit.h says of which commit the sources are ("" outside of git). Every
# build looks; the header changes only when the answer does.
if(CMAKE_SCRIPT_MODE_FILE)
  find_package(Git QUIET)
  set(commit "")
  if(EXISTS ${SOURCE}/.git AND Git_FOUND)
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env GIT_OPTIONAL_LOCKS=0
              ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty
              --abbrev=12 --exclude=*
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define LUNA_COMMIT \"${commit}\"\n")
  return()
endif()

set(header ${CMAKE_CURRENT_BINARY_DIR}/generated/luna_commit.h)
add_custom_target(luna_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}
          -DHEADER=${header} -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${header}
  VERBATIM)
add_dependencies(luna luna_commit)
set_property(SOURCE src/version.cpp APPEND PROPERTY
  INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
