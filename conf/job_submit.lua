-- SPDX-License-Identifier: Apache-2.0
-- Slurm: every job waits for an outside scheduler (koala wiki serve, koala schedule), users need do nothing.
--
-- Install: copy to the directory of slurm.conf, set JobSubmitPlugins=lua there (several: JobSubmitPlugins=lua,others),
-- run `scontrol reconfigure`. Undo: take the line out, reconfigure, `koala schedule --give-back CLUSTER`.
-- The scheduler must run as root, SlurmUser, or a Slurm operator that is named below.
--
-- A job comes in with priority 0, that is, held. Slurm shows that as the user's own hold (JobHeldUser), so such a job
-- is marked in its AdminComment. A user's own `--hold` or `scontrol hold` is kept as a word in the job's comment; the
-- user's release takes the word away, and the job waits for the scheduler again.
--
-- From 23.11 on Slurm shows a job that may have any number of nodes as if its user had asked for as few as possible. So
-- the AdminComment says that too; a number that the user gives later is noted as a word in the job's comment.

local MARK = "koala outside scheduler"
local ANY_NODES = MARK .. ", any number of nodes"
local USER_HOLD = "koala:hold"
local USER_NODES = "koala:nodes"
local OPERATORS = { [0] = true } -- user ids that may start jobs; add that of SlurmUser and of koala's user
local LEAVE_ALONE = {} -- partitions with a scheduler of their own, such as { debug = true }

local function has_word(text, word)
   return text ~= nil and string.find(text, word, 1, true) ~= nil
end

local function add_word(text, word)
   text = text or ""
   if has_word(text, word) then
      return text
   end
   return text == "" and word or text .. " " .. word
end

local function without_word(text)
   local rest = string.gsub(text or "", " ?" .. USER_HOLD, "")
   return rest == "" and "released" or rest -- Slurm does not take an empty comment for a change
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   if job_desc.partition ~= nil and LEAVE_ALONE[job_desc.partition] then
      return slurm.SUCCESS
   end
   if job_desc.priority == 0 then
      job_desc.comment = add_word(job_desc.comment, USER_HOLD)
   end
   job_desc.priority = 0
   job_desc.admin_comment = job_desc.max_nodes == slurm.NO_VAL and ANY_NODES or MARK
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   local ours = string.sub(job_rec.admin_comment or "", 1, #MARK) == MARK
   if OPERATORS[modify_uid] or not ours then
      return slurm.SUCCESS
   end
   local gives_nodes = job_desc.max_nodes ~= slurm.NO_VAL
   if gives_nodes or (job_desc.comment ~= nil and has_word(job_rec.comment, USER_NODES)) then
      job_desc.comment = add_word(job_desc.comment or job_rec.comment, USER_NODES)
   end
   if job_desc.priority == slurm.NO_VAL then
      return slurm.SUCCESS
   end
   local comment = job_desc.comment or job_rec.comment
   if job_desc.priority == 0 then
      job_desc.comment = add_word(comment, USER_HOLD)
      return slurm.SUCCESS
   end
   if has_word(job_rec.comment, USER_HOLD) then
      job_desc.comment = without_word(comment)
      job_desc.priority = 0
      return slurm.SUCCESS
   end
   slurm.log_user("this job waits for the site's scheduler, which starts it; nothing need be released")
   return slurm.ERROR
end

return slurm
